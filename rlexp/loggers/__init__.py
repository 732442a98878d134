"""Where metrics go: TensorBoard, Weights & Biases, or a logger of your own, and the console for the person watching."""

from rlexp.loggers.base import Logger, Row, RunInfo
from rlexp.loggers.console import Console
from rlexp.loggers.logger_set import LoggerSet
from rlexp.loggers.tensorboard import TensorBoardLogger
from rlexp.loggers.wandb import WandbLogger, WandbMode

__all__ = ["Console", "Logger", "LoggerSet", "Row", "RunInfo", "TensorBoardLogger", "WandbLogger", "WandbMode"]
