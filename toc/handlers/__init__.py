"""What to do: handlers by biz_type, and what they may answer."""
