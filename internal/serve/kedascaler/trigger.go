// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Trigger is the metadata of a trigger, checked.
type Trigger struct {
	// Exactly one of these is set.
	Metric     string
	Autoscaler string
	Query      string

	Target     float64  // per replica, or for the whole workload if the trigger's metricType is Value
	Activation *float64 // activationTarget; nil: not given

	// Of Metric.
	Stat   string
	Window time.Duration
	Active bool
}

// The keys of a trigger's metadata.
const (
	keyMetric     = "metric"
	keyAutoscaler = "autoscaler"
	keyQuery      = "query"
	keyTarget     = "target"
	keyActivation = "activationTarget"
	keyStat       = "stat"
	keyWindow     = "window"
	keyInUse      = "in_use"
)

var ownKeys = []string{keyMetric, keyAutoscaler, keyQuery, keyTarget, keyActivation, keyStat, keyWindow, keyInUse}

// kedaKeys are the keys of the metadata that KEDA itself reads.
var kedaKeys = []string{"scalerAddress", "enableTLS", "unsafeSsl", "tlsCertFile"}

// The bounds of a trigger.
const (
	maxName    = 253 // bytes of an object's or a metric's name
	minWindow  = time.Second
	maxWindow  = 24 * time.Hour
	maxEntries = 64 // of the metadata
)

// triggerError is an error about a field of the metadata. It says what to do.
type triggerError struct{ key, text string }

// Error implements error.
func (e *triggerError) Error() string { return "metadata." + e.key + ": " + e.text }

func badKey(key, format string, args ...any) error {
	return &triggerError{key, fmt.Sprintf(format, args...)}
}

// ParseTrigger reads the metadata of a trigger. Its error names the key, the value and
// what to write instead.
func ParseTrigger(metadata map[string]string) (Trigger, error) {
	if len(metadata) > maxEntries {
		return Trigger{}, fmt.Errorf("metadata: %d keys; at most %d are allowed", len(metadata), maxEntries)
	}
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		if !slices.Contains(ownKeys, key) && !slices.Contains(kedaKeys, key) {
			return Trigger{}, badKey(short(key), "unknown key; the keys are %s", strings.Join(ownKeys, ", "))
		}
	}
	t := Trigger{Metric: metadata[keyMetric], Autoscaler: metadata[keyAutoscaler], Query: metadata[keyQuery]}
	if err := t.checkSource(); err != nil {
		return Trigger{}, err
	}
	for _, parse := range []func(map[string]string) error{t.parseTarget, t.parseActivation, t.parseStat, t.parseWindow, t.parseInUse} {
		if err := parse(metadata); err != nil {
			return Trigger{}, err
		}
	}
	return t, nil
}

func (t *Trigger) checkSource() error {
	set := 0
	for key, value := range map[string]string{keyMetric: t.Metric, keyAutoscaler: t.Autoscaler, keyQuery: t.Query} {
		if value == "" {
			continue
		}
		set++
		if len(value) > maxName {
			return badKey(key, "%d bytes; a name has at most %d", len(value), maxName)
		}
	}
	if set != 1 {
		return badKey(keyMetric, "%d of metric, autoscaler and query are set; set exactly one: a GPU metric such as Utilization, "+
			"the name of a GPUAutoscaler, or the name of a MetricQuery", set)
	}
	return nil
}

func (t *Trigger) parseTarget(metadata map[string]string) error {
	text, ok := metadata[keyTarget]
	if !ok {
		if t.Autoscaler != "" {
			t.Target = 1 // the metric is the number of replicas
			return nil
		}
		return badKey(keyTarget, `missing; set the value that one replica is to have, such as target: "60"`)
	}
	v, err := parseNumber(keyTarget, text)
	if err != nil {
		return err
	}
	if v <= 0 {
		return badKey(keyTarget, "%q is not above zero; set the value that one replica is to have", short(text))
	}
	// KEDA passes the target on in thousandths.
	if v < 0.001 || v > math.MaxInt64/1000 {
		return badKey(keyTarget, "%q is out of range; the range is 0.001 to 9e15", short(text))
	}
	t.Target = v
	return nil
}

func (t *Trigger) parseActivation(metadata map[string]string) error {
	text, ok := metadata[keyActivation]
	if !ok {
		return nil
	}
	v, err := parseNumber(keyActivation, text)
	if err == nil {
		t.Activation = &v
	}
	return err
}

func parseNumber(key, text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, badKey(key, "%q is not a number; write it as a quoted decimal number such as \"60\" or \"0.5\"", short(text))
	}
	return v, nil
}

func (t *Trigger) parseStat(metadata map[string]string) error {
	text, ok := metadata[keyStat]
	switch {
	case !ok:
		t.Stat = "avg"
	case t.Metric == "":
		return badKey(keyStat, "only a metric has statistics; remove it")
	case !isStat(text):
		return badKey(keyStat, "%q is none of avg, sum, min, max and percentiles p1 to p99", short(text))
	default:
		t.Stat = text
	}
	return nil
}

// isStat reports whether s is the name of a statistic.
func isStat(s string) bool {
	switch s {
	case "avg", "sum", "min", "max":
		return true
	}
	digits, ok := strings.CutPrefix(s, "p")
	n, err := strconv.Atoi(digits)
	return ok && err == nil && n >= 1 && n <= 99 && strconv.Itoa(n) == digits
}

func (t *Trigger) parseWindow(metadata map[string]string) error {
	text, ok := metadata[keyWindow]
	if !ok {
		return nil
	}
	if t.Metric == "" {
		return badKey(keyWindow, "only a metric has a window; remove it")
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < minWindow || d > maxWindow {
		return badKey(keyWindow, "%q is not a duration from %s to %s, such as 5m", short(text), minWindow, maxWindow)
	}
	t.Window = d
	return nil
}

func (t *Trigger) parseInUse(metadata map[string]string) error {
	text, ok := metadata[keyInUse]
	switch {
	case !ok, text == "allocated" && t.Metric != "":
	case t.Metric == "":
		return badKey(keyInUse, "only a metric can be limited to GPUs in use; remove it")
	case text != "active":
		return badKey(keyInUse, "%q is neither allocated (all GPUs of the pods) nor active (those with load within the window)", short(text))
	default:
		t.Active = true
	}
	return nil
}

// MetricName returns the name of the metric for KEDA. It is stable, and valid as a part
// of a URL's path.
func (t *Trigger) MetricName() string {
	switch {
	case t.Autoscaler != "":
		return "gpupilot-desired-replicas-" + clean(t.Autoscaler)
	case t.Query != "":
		return "gpupilot-query-" + clean(t.Query)
	}
	return "gpupilot-" + clean(t.Metric)
}

// clean replaces characters that a metric's name in a path must not have.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '-'
	}, s)
}

// own returns the part of the metadata that is for the scaler. Only this part selects
// what is read.
func own(metadata map[string]string) map[string]string {
	out := map[string]string{}
	for _, key := range ownKeys {
		if value, ok := metadata[key]; ok {
			out[key] = value
		}
	}
	return out
}

// findTrigger returns the ScaledObject's trigger with this metadata.
func (o *ScaledObject) findTrigger(metadata map[string]string) (*ObjectTrigger, bool) {
	want := own(metadata)
	for i := range o.Triggers {
		x := &o.Triggers[i]
		if isExternal(x.Type) && maps.Equal(own(x.Metadata), want) {
			return x, true
		}
	}
	return nil, false
}
