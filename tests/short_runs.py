"""Options that make ``legos train`` short."""

__all__ = ["FEW", "NIM"]

FEW = ("--play.tasks-per-step", "8", "--training.min-samples-per-step", "16")
NIM = (*FEW, "--play.options.largest", "5")  # an exact evaluation takes a third of the usual time
