"""What a decoder transformer is, how many parameters it has and what a token costs to train.

One description serves MFU, memory and what-if. It is read from our own names, from a Hugging Face
``config.json`` or from Megatron's arguments; nothing here imports torch.
"""

from .counts import CONVENTIONS, DEFAULT_CONVENTION, flops_per_token
from .description import ModelDescription
from .fields import describe_model, model_fields

__all__ = [
    "CONVENTIONS",
    "DEFAULT_CONVENTION",
    "ModelDescription",
    "describe_model",
    "flops_per_token",
    "model_fields",
]
