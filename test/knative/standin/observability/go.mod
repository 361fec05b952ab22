module knative.dev/pkg/observability

go 1.26.0

require go.opentelemetry.io/otel v1.47.0
