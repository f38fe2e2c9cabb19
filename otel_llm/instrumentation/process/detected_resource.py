"""The resource of a process without a TracerProvider of its own, as the SDK's detectors find it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from otel_llm import semconv

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource


def detected() -> Resource:
    """Return the shared resource of this process and its forks.

    It is detected once for all of them, since the SDK runs its detectors in a thread pool, which stands still in a
    worker that eventlet has patched. An instance id that the SDK made up is left out: each fork has its own.
    """
    from opentelemetry.sdk import resources

    resource = resources.Resource.create()
    made_up = getattr(resources, "ServiceInstanceIdResourceDetector", None)  # not in every version
    attributes = dict(resource.attributes)
    if made_up is not None:
        made = made_up().detect().attributes.get(semconv.SERVICE_INSTANCE_ID)
        if attributes.get(semconv.SERVICE_INSTANCE_ID) == made:
            attributes.pop(semconv.SERVICE_INSTANCE_ID, None)
    return resources.Resource(attributes, resource.schema_url)
