"""`otel-llm rules schema`: prints the schema with which editors complete and check rule files."""

from __future__ import annotations

import click

from otel_llm.rules.files.editor_schema import schema_text


@click.command()
def schema() -> None:
    """Print the JSON schema of rule files, for editors.

    With the YAML language server, begin a rule file with `# yaml-language-server: $schema=rules.schema.json`. It checks
    keys, actions and values; `otel-llm rules check` checks conditions, too.

    \b
    Example:
      otel-llm rules schema > rules.schema.json
    """
    click.echo(schema_text(), nl=False)
