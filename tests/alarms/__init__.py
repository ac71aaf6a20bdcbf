"""Alarms: the formats of four chats, which messages are sent when, and whole nodes."""
