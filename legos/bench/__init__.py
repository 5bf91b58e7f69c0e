"""What ``legos bench`` measures: the kit against bare loops and other programs."""
