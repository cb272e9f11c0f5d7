"""The verdict's own test: odd shapes with exact moments, right or wrong, good or not."""
