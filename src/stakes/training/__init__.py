"""Training a posterior: the settings, the examples, and one loop for all objectives (`stakes.fit`)."""

from stakes.training.config import Epoch, History, Training
from stakes.training.examples import Batch, DatasetExamples, Examples, TensorExamples

__all__ = ["Batch", "DatasetExamples", "Epoch", "Examples", "History", "TensorExamples", "Training"]
