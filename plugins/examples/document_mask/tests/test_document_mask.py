import numpy as np
import pytest
from attnloom.errors import ParamError
from attnloom.testing import VariantSuite
from attnloom.testing.functors import FunctorSpec
from attnloom_document_mask.documents import from_lengths


class TestDocumentMask(VariantSuite):
    variant = "document_mask"


def test_from_lengths():
    params = from_lengths([[2, 1], [], [3]])
    assert params["ids"].tolist() == [0, 0, 1, 0, 0, 0]
    assert params["first"].tolist() == [0, 0, 2, 0, 0, 0]
    assert params["begin"].tolist() == [0, 3, 3, 6]


def test_what_does_not_fit_is_refused(attnloom_plugins):
    from attnloom.compose import compose

    composition = compose(["document_mask"], spec=FunctorSpec(), plugins=attnloom_plugins)
    params = {f"document_mask.{name}": value for name, value in from_lengths([[2, 1]]).items()}
    with pytest.raises(ParamError, match="must rise from 0 to 3"):
        composition.resolve({**params, "document_mask.begin": np.array([0, 2])})
