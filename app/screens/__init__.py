"""Full screens and modal dialogs, one file each with its stylesheet beside it."""
