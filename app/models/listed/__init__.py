"""The list of model files as the picker and `tui-chat models` show it: order, notes, removal."""
