// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/gpu/names"
	"github.com/gpupilot/gpupilot/internal/promql/source"
	"github.com/gpupilot/gpupilot/internal/window/series"
	"github.com/gpupilot/gpupilot/internal/window/stat"
)

// spec is a built-in metric as a request names it: METRIC[:STAT][_WINDOW], and the
// labels of a metric selector that mean the same.
type spec struct {
	name     string // as requested
	base     string // METRIC
	field    *gpu.Field
	scale    float64 // the field's value divided by scale is in the name's unit
	stat     stat.Stat
	window   time.Duration
	gpu      string
	inUse    stat.InUse
	useGiven bool
}

// isPlain reports whether the request asks for the newest value with the field's own
// aggregation.
func (s *spec) isPlain() bool {
	return s.stat.Kind == stat.Default && s.window == 0 && s.gpu == "" && s.inUse != stat.ActiveGPU
}

// averageOfActive is the metric of gpu-utilization-metric-exporter: the mean of
// DCGM_FI_DEV_MEM_COPY_UTIL over the GPUs that are in use.
const averageOfActive = "avg_GPU_utilization"

// parse resolves the name and the metric selector of a request. The error is
// ErrUnknownMetric if METRIC is not built in, and a bad request if the rest is invalid.
func (p *Provider) parse(name string, selector labels.Selector) (spec, error) {
	s := spec{name: name}
	if err := p.parseName(&s); err != nil {
		return s, err
	}
	if err := s.parseSelector(selector); err != nil {
		return s, err
	}
	if s.window > p.span {
		return s, s.badRequest("the window %s is longer than the controller's, %s (--window)", s.window, p.span)
	}
	return s, nil
}

// parseName splits the name. The longest known METRIC wins, because names of metrics
// have colons and underscores, too.
func (p *Provider) parseName(s *spec) error {
	if len(s.name) > maxMetricName {
		return source.ErrUnknownMetric
	}
	if p.resolve(s, s.name) {
		return s.checkField()
	}
	for _, mark := range []string{":", "_"} {
		at := strings.LastIndex(s.name, mark)
		if at <= 0 {
			continue
		}
		statistic, window, ok := parseSuffix(s.name[at:])
		if ok && p.resolve(s, s.name[:at]) {
			if s.stat.Kind != stat.Default && statistic.Kind != stat.Default && statistic != s.stat {
				return s.badRequest("%s is a mean already", s.base)
			}
			if statistic.Kind != stat.Default {
				s.stat = statistic
			}
			s.window = window
			return s.checkField()
		}
		if !ok && mark == ":" && p.resolve(s, s.name[:at]) {
			return s.badRequest("%q is no statistic: %s", excerptOf(s.name[at+1:]), grammar)
		}
	}
	return source.ErrUnknownMetric
}

// maxMetricName bounds the names that are parsed, in bytes.
const maxMetricName = 1024

const grammar = "a name is METRIC[:STAT][_WINDOW], STAT is avg, sum, min, max or p1 to p99, and WINDOW a duration such as 30s or 5m"

// parseSuffix parses :STAT, :STAT_WINDOW or _WINDOW.
func parseSuffix(suffix string) (statistic stat.Stat, window time.Duration, ok bool) {
	rest, isStat := strings.CutPrefix(suffix, ":")
	if !isStat {
		window, ok = parseWindow(suffix[1:])
		return statistic, window, ok
	}
	text, duration, hasWindow := strings.Cut(rest, "_")
	if statistic, ok = stat.Parse(text); !ok || !hasWindow {
		return statistic, 0, ok
	}
	window, ok = parseWindow(duration)
	return statistic, window, ok
}

// parseWindow parses a positive duration in hours, minutes and seconds, such as 90s or
// 1m30s.
func parseWindow(s string) (time.Duration, bool) {
	if len(s) > 16 || strings.Trim(s, "0123456789hms") != "" {
		return 0, false
	}
	for i := range len(s) {
		if !strings.Contains("0123456789hms", s[i:i+1]) || s[i] == 's' && i > 0 && s[i-1] == 'm' {
			return 0, false
		}
	}
	d, err := time.ParseDuration(s)
	return d, err == nil && d > 0
}

// resolve sets the metric of s. It reports whether the metric is built in.
func (p *Provider) resolve(s *spec, name string) bool {
	s.base, s.scale = name, 1
	if name == averageOfActive {
		s.field, _ = gpu.Lookup(gpu.MemCopyUtil)
		s.stat, s.inUse, s.useGiven = stat.Stat{Kind: stat.Mean}, stat.ActiveGPU, true
		return true
	}
	if ref, ok := names.Resolve(name); ok {
		s.field, _ = gpu.Lookup(ref.Field)
		s.scale = ref.Scale
		return true
	}
	return slices.Contains(p.deps.Names(), name)
}

func (s *spec) checkField() error {
	if s.field != nil && s.field.Kind == gpu.Label || s.scale == 0 {
		return notFound("metric %s is a label, not a number", s.base)
	}
	return nil
}

// The labels of a metric selector.
const (
	windowLabel = "window"
	statLabel   = "stat"
	gpuLabel    = "gpu"
	inUseLabel  = "in_use"
)

// maxSelectorLabels bounds the requirements of a metric selector that are read.
const maxSelectorLabels = 8

// parseSelector adds the labels of a metric selector.
func (s *spec) parseSelector(selector labels.Selector) error {
	if selector == nil || selector.Empty() {
		return nil
	}
	requirements, selectable := selector.Requirements()
	if !selectable || len(requirements) > maxSelectorLabels {
		return s.badRequest("the metric selector has too many requirements: %s", allowedLabels)
	}
	for i := range requirements {
		r := &requirements[i]
		values := r.ValuesUnsorted()
		op := r.Operator()
		if len(values) != 1 || op != selection.Equals && op != selection.DoubleEquals && op != selection.In {
			return s.badRequest("the metric selector's %q needs one value: %s", excerptOf(r.String()), allowedLabels)
		}
		if err := s.setLabel(r.Key(), values[0]); err != nil {
			return err
		}
	}
	return nil
}

const allowedLabels = "use window=DURATION, stat=avg|sum|min|max|p1 to p99, gpu=INDEX|UUID and in_use=allocated|active|any"

// setLabel adds one label of a metric selector.
func (s *spec) setLabel(key, value string) error {
	switch key {
	case windowLabel:
		window, ok := parseWindow(value)
		if !ok {
			return s.badRequest("window=%s is no duration such as 30s or 5m", excerptOf(value))
		}
		if s.window != 0 && s.window != window {
			return s.badRequest("the name says a window of %s, the metric selector %s", s.window, window)
		}
		s.window = window
	case statLabel:
		statistic, ok := stat.Parse(value)
		if !ok {
			return s.badRequest("stat=%s is no statistic: avg, sum, min, max or p1 to p99", excerptOf(value))
		}
		if s.stat.Kind != stat.Default && s.stat != statistic {
			return s.badRequest("the name says the statistic %s, the metric selector %s", s.stat, statistic)
		}
		s.stat = statistic
	case gpuLabel:
		if value == "" || !series.IsDevice(len(value)) {
			return s.badRequest("gpu=%s is neither an index nor a UUID of a GPU", excerptOf(value))
		}
		s.gpu = value
	case inUseLabel:
		i := slices.IndexFunc([]stat.InUse{stat.AnyGPU, stat.AllocatedGPU, stat.ActiveGPU}, func(u stat.InUse) bool { return u.String() == value })
		if i < 0 {
			return s.badRequest("in_use=%s is none of allocated, active and any", excerptOf(value))
		}
		if s.useGiven && s.inUse != stat.InUse(i) {
			return s.badRequest("%s is of the active GPUs, the metric selector says in_use=%s", s.base, value)
		}
		s.inUse, s.useGiven = stat.InUse(i), true
	default:
		return s.badRequest("the metric selector has the label %q: %s", excerptOf(key), allowedLabels)
	}
	return nil
}

func (s *spec) badRequest(format string, args ...any) error {
	return apierrors.NewBadRequest(fmt.Sprintf("metric %s: %s", excerptOf(s.name), fmt.Sprintf(format, args...)))
}
