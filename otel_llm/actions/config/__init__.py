"""The sections of a settings file that collector and relay share: receivers, engines, certificates, tokens."""
