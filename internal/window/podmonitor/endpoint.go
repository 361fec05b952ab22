// SPDX-License-Identifier: Apache-2.0

package podmonitor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/gpupilot/gpupilot/internal/scale/policy"
)

const (
	// defaultInterval is shorter than that of most Prometheus servers, because
	// autoscalers read the values, and longer than that of autoscalers' own signals,
	// because most PodMonitors are made for dashboards.
	defaultInterval = 10 * time.Second
	// maxInterval bounds an endpoint's interval: the windows of the last minutes would
	// have hardly a sample of slower ones.
	maxInterval = 5 * time.Minute
)

// endpointFields are the parts of an endpoint that are read.
type endpointFields struct {
	Port        string              `json:"port"`
	PortNumber  *int32              `json:"portNumber"`
	TargetPort  *intstr.IntOrString `json:"targetPort"`
	Path        string              `json:"path"`
	Scheme      string              `json:"scheme"`
	TLS         map[string]any      `json:"tlsConfig"`
	Interval    string              `json:"interval"`
	Relabelings []relabeling        `json:"relabelings"`
}

// readFields are the fields of endpointFields, and unusedFields those that do not
// change what is read: pods are scraped while they run, with the controller's own
// timeout, and never through a redirect.
var (
	readFields   = []string{"port", "portNumber", "targetPort", "path", "scheme", "tlsConfig", "interval", "relabelings"}
	unusedFields = []string{
		"scrapeTimeout", "honorTimestamps", "trackTimestampsStaleness", "followRedirects", "enableHttp2", "enableHTTP2", "filterRunning", "honorLabels",
	}
)

// parseEndpoint reads one endpoint. Its error and the note begin with the field.
func parseEndpoint(fields map[string]any) (e Endpoint, note string, err error) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(readFields, name) && !slices.Contains(unusedFields, name) && !isEmpty(fields[name]) {
			return e, "", fmt.Errorf("%.64s is not supported: the controller scrapes pods without credentials, proxies and parameters, and keeps their series as they are", name)
		}
	}
	var f endpointFields
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &f); err != nil {
		return e, "", fmt.Errorf("* cannot be read: %w", err)
	}
	if e.Port, err = f.port(); err != nil {
		return e, "", err
	}
	if e.Path, err = policy.CheckPath(f.Path); err != nil {
		return e, "", err
	}
	if e.TLS, err = f.verify(); err != nil {
		return e, "", err
	}
	if e.Interval = defaultInterval; f.Interval != "" {
		d, err := model.ParseDuration(f.Interval)
		if err != nil {
			return e, "", fmt.Errorf("interval is %.16q: write a duration, such as 15s", f.Interval)
		}
		e.Interval = min(time.Duration(d), maxInterval)
	}
	if e.relabel, err = parseRelabelings(f.Relabelings); err != nil {
		return e, "", err
	}
	if !isEmpty(fields["honorLabels"]) {
		note = "honorLabels is ignored: a label of the page with the name of a target's label becomes exported_..."
	}
	return e, note, nil
}

// verify returns how the server's certificate is verified; nil: the scheme is http. A
// tlsConfig names authorities and certificates by Secrets and ConfigMaps, of which the
// controller reads none.
func (f *endpointFields) verify() (*policy.TLS, error) {
	if f.Scheme == "" || strings.EqualFold(f.Scheme, "http") {
		return nil, nil // Prometheus ignores tlsConfig too
	}
	if !strings.EqualFold(f.Scheme, "https") {
		return nil, fmt.Errorf("scheme is %.16q: write http or https", f.Scheme)
	}
	for _, name := range slices.Sorted(maps.Keys(f.TLS)) {
		if name != "insecureSkipVerify" && name != "serverName" && !isEmpty(f.TLS[name]) {
			return nil, fmt.Errorf("tlsConfig.%.64s is not supported: the controller reads no Secrets and ConfigMaps of tenants; set insecureSkipVerify: true, or tls.ca in a GPUAutoscaler's signal", name)
		}
	}
	if f.TLS["insecureSkipVerify"] != true {
		return nil, fmt.Errorf("tlsConfig.insecureSkipVerify is not true: scheme https needs it, because the controller reads no authority from a Secret or ConfigMap")
	}
	return &policy.TLS{InsecureSkipVerify: true}, nil
}

// port returns the endpoint's port, in the order of precedence of the Prometheus
// Operator.
func (f *endpointFields) port() (intstr.IntOrString, error) {
	p, name := intstr.IntOrString{}, "port"
	switch {
	case f.Port != "":
		p = intstr.FromString(f.Port)
	case f.PortNumber != nil:
		p, name = intstr.FromInt32(*f.PortNumber), "portNumber"
	case f.TargetPort != nil:
		p, name = *f.TargetPort, "targetPort"
	default:
		return p, fmt.Errorf("port is missing: name the container port that serves the metrics")
	}
	if p.Type == intstr.Int && len(validation.IsValidPortNum(int(p.IntVal))) > 0 {
		return p, fmt.Errorf("%s is %d: it must lie between 1 and 65535", name, p.IntVal)
	}
	if p.Type == intstr.String && len(validation.IsValidPortName(p.StrVal)) > 0 {
		return p, fmt.Errorf("%s is %.64q, which is not the name of a container port", name, p.StrVal)
	}
	return p, nil
}

// isEmpty reports whether a field has no meaning: older versions of the API write
// bearerTokenSecret: {key: ""} without a token.
func isEmpty(v any) bool {
	switch x := v.(type) {
	case nil:
		return true
	case bool:
		return !x
	case string:
		return x == ""
	case []any:
		return len(x) == 0
	case map[string]any:
		for _, inner := range x {
			if !isEmpty(inner) {
				return false
			}
		}
		return true
	}
	return false
}
