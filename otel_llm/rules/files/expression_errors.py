"""The errors of expressions in a YAML file, with the characters that they are about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm.config.source_positions import source_part
from otel_llm.config.yaml_file import ConfigError, YamlFile, dotted

if TYPE_CHECKING:
    from otel_llm.config.yaml_file import KeyPath
    from otel_llm.rules.language.tokens import ExpressionError


class RuleError(ConfigError):
    """An expression was refused: a ConfigError with the number of characters that the caret underlines."""

    length: int = 1


def expression_error(file: YamlFile, path: KeyPath, text: str, error: ExpressionError) -> RuleError:
    """Return an expression's error with its position in the file: the exact character, or else the scalar's start."""
    line, column, length = source_part(file.text, file.value_mark(path), text, error.start, error.end)
    refused = RuleError(file.file, line, column, dotted(path), error.message, error.advice)
    refused.length = length
    return refused
