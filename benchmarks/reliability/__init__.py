"""Kills of commands at random moments, and fuzzing of every parser and importer."""
