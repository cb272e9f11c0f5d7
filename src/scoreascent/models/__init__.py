"""The paper's models as ordinary targets."""
