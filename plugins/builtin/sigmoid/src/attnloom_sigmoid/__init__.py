"""FlashSigmoid: element-wise sigmoid weights, no softmax."""
