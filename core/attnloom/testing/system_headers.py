"""Headers that every C++ compiler finds: a plugin has none of their names."""

from __future__ import annotations

import re

STANDARD_HEADERS = frozenset(
    re.findall(
        r"\w+",
        """
        aio alloca ar argz arpa assert byteswap complex cpio crypt ctype cuda cuda_fp16 cuda_runtime cupti dirent dlfcn
        elf endian err errno error execinfo fcntl features fenv float fnmatch fstab ftw getopt glob grp iconv immintrin
        inttypes iso646 langinfo libgen limits link locale malloc math memory monetary mqueue mvec netdb nl_types nvrtc
        omp paths poll printf pthread pwd regex resolv sched search semaphore setjmp sgtty shadow signal spawn stab
        stdalign stdarg stdatomic stdbool stdc stddef stdint stdio stdlib stdnoreturn string strings syscall sysexits
        syslog tar termio termios tgmath thread_db threads time uchar unistd utime utmp values wait wchar wctype wordexp
        """,
    )
)
"""Names of headers of the system: a plugin's own of such a name would be included in their place."""
