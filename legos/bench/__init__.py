"""What ``legos bench`` measures: the kit beside bare loops and other programs."""
