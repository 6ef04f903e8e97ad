"""Training a posterior: the settings, the examples, and one loop for all objectives (`stakes.fit`)."""

from stakes.training.config import Epoch, History, Step, Training
from stakes.training.examples import Batch, Examples, TensorExamples
from stakes.training.loaders import DatasetExamples

__all__ = ["Batch", "DatasetExamples", "Epoch", "Examples", "History", "Step", "TensorExamples", "Training"]
