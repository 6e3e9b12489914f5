"""The part of the model that one stage holds, its pace and its memory."""
