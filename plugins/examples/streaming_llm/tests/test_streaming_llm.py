from attnloom.testing import VariantSuite


class TestStreamingLLM(VariantSuite):
    variant = "streaming_llm"
    cases = ({}, {"sinks": 4, "window": 10}, {"sinks": 0, "window": 1}, {"sinks": 2**31 - 1, "window": 2**31 - 1})
