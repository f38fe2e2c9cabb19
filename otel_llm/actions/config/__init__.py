"""The sections of a settings file that collector and relay share: who is told, who acts, who is asked for a token."""
