// The Grafana dashboards and the Prometheus rules, written in Go, in a module of their own: the dashboards' types stay
// out of the main module. The names of metrics and the XID table are the main module's.
module github.com/gpupilot/gpupilot/deploy/monitoring

go 1.26.7

require (
	github.com/gpupilot/gpupilot v0.0.0
	github.com/grafana/grafana-foundation-sdk/go v0.0.12
	go.yaml.in/yaml/v3 v3.0.5
)

replace github.com/gpupilot/gpupilot => ../..
