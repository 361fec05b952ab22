// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/gpu"
	"github.com/gpupilot/gpupilot/internal/scale"
)

const (
	// defaultConcurrency is a preset's target of requests per replica, unless the
	// signal has a target.
	defaultConcurrency = 8
	// defaultKVCache is the use of the KV cache, in percent, above which servers
	// begin to preempt requests because the cache is full.
	defaultKVCache = 80
)

// newPace returns the pace from the first of the inter-token histograms that a
// server exposes, and from its histogram of the time to the first token.
func newPace(first string, histograms ...string) *Pace {
	var p Pace
	p.FirstTokenSeconds, p.FirstTokens = sumAndCount(first)
	p.TokenSeconds, p.Tokens = sumAndCount(histograms...)
	return &p
}

// sumAndCount returns the rates of the histograms' _sum and _count series.
func sumAndCount(histograms ...string) (sum, count Term) {
	for _, name := range histograms {
		sum = append(sum, PodMetric{Name: name + "_sum", Rate: true})
		count = append(count, PodMetric{Name: name + "_count", Rate: true})
	}
	return sum, count
}

// The upper bounds of the servers' values. A cache share that is counted in blocks
// can exceed 1 by one block; a float64 counts exactly up to 2^53.
const (
	maxRequests   = 1e6
	maxCacheShare = 1.05
	maxCount      = 1 << 53
)

// setRanges sets the upper bound of each metric. The lower bound is 0.
func (p *server) setRanges() {
	set := func(upper float64, terms ...Term) {
		for _, term := range terms {
			for i := range term {
				if term[i].UpperBound = upper; term[i].Rate {
					term[i].UpperBound = maxCount
				}
			}
		}
	}
	set(maxRequests, append(p.queues, p.running, p.waiting)...)
	set(maxCacheShare, p.kvCache)
	set(maxCount, p.arrived, p.completed)
	if p.pace != nil {
		set(maxCount, p.pace.TokenSeconds, p.pace.Tokens, p.pace.FirstTokenSeconds, p.pace.FirstTokens)
	}
}

// expandPreset appends the signals of a preset: the requests per replica, running
// and waiting, and the use of the KV cache if the server exposes it. A target
// applies to the requests. The queue is not a signal of its own: its length does not
// determine the number of replicas, and a target for it would ask for far too many
// replicas in every burst.
func (c *Compiled) expandPreset(in *v1alpha1.Signal, p *server, path *field.Path) *field.Error {
	if p == nil {
		return field.NotSupported(path.Child("preset"), in.Preset, Presets())
	}
	concurrency, err := requestsPerReplica(in.Target, path.Child("target"))
	if err != nil {
		return err
	}
	limit, first, err := latencyLimits(in.SLO, p.pace, path.Child("slo"))
	if err != nil {
		return err
	}
	if err := validatePort(in.Port, path.Child("port")); err != nil {
		return err
	}
	src := Source{Kind: Pods, Port: p.port}
	src.Port.Given = in.Port
	if src.Path, err = parsePath(in.Path, path.Child("path")); err != nil {
		return err
	}
	if src.TLS, err = parseTLS(in.Scheme, in.TLS, path); err != nil {
		return err
	}
	add := func(s scale.Signal, terms ...Term) {
		s.Name = fmt.Sprintf("%s %s", in.Preset, s.Name)
		src.Terms = terms
		c.Policy.Signals = append(c.Policy.Signals, s)
		c.Sources = append(c.Sources, src)
	}
	requests := scale.Signal{Name: "requests", Target: concurrency, Aggregate: gpu.Sum, Law: scale.Batching, Limit: limit, FirstLimit: first}
	if requests.Learned() {
		src.Pace = p.pace.withFirstToken(first > 0)
		src.Misses = p.misses.of(limit, first)
		src.Misses.CacheUse, src.Misses.Running, src.Misses.Waiting = p.kvCache, p.running, p.waiting
		if err := setTerms(&requests, in.SLO, path.Child("slo")); err != nil {
			return err
		}
	}
	src.Arrived, src.Completed, src.Awake = p.arrived, p.completed, p.awake
	src.InFlight = append([]Term{withoutRates(p.running), withoutRates(p.waiting)}, p.queues...)
	add(requests, append([]Term{p.running, p.waiting}, p.queues...)...)
	src.Pace, src.Misses, src.Arrived, src.Completed, src.InFlight, src.Awake = nil, nil, nil, nil, nil, nil
	if p.kvCache != nil {
		add(scale.Signal{Name: "KV cache", Unit: string(gpu.Percent), Target: defaultKVCache, Ceiling: 100, Aggregate: gpu.Mean}, inPercent(p.kvCache))
	}
	return nil
}

// requestsPerReplica returns the target of a preset.
func requestsPerReplica(t *v1alpha1.Target, path *field.Path) (float64, *field.Error) {
	if t == nil {
		return defaultConcurrency, nil
	}
	value, kind, err := parseTarget(t, path)
	if err == nil && kind != scale.AverageValue {
		err = field.NotSupported(path.Child("type"), t.Type, []v1alpha1.TargetType{v1alpha1.AverageValue})
	}
	return value, err
}

// withFirstToken returns a copy of the pace that has the time to the first token
// only if keep is true.
func (p *Pace) withFirstToken(keep bool) *Pace {
	out := *p
	if !keep {
		out.FirstTokenSeconds, out.FirstTokens = nil, nil
	}
	return &out
}

// latencyLimits returns the slo's limits of the time between tokens and of the time
// to the first token, in seconds; 0: no limit.
func latencyLimits(slo *v1alpha1.SLO, pace *Pace, path *field.Path) (between, first float64, err *field.Error) {
	switch {
	case slo == nil:
		return 0, 0, nil
	case pace == nil:
		return 0, 0, field.Forbidden(path, "this server does not expose the time between tokens; set a target instead")
	case slo.InterTokenLatency == nil && slo.TimeToFirstToken == nil:
		return 0, 0, field.Required(path, "an slo needs interTokenLatency, timeToFirstToken or both")
	}
	if between, err = latencySeconds(slo.InterTokenLatency, path.Child("interTokenLatency"), "50ms"); err != nil {
		return 0, 0, err
	}
	first, err = latencySeconds(slo.TimeToFirstToken, path.Child("timeToFirstToken"), "2s")
	return between, first, err
}

const (
	// defaultObjective is the share of the requests that keep the limits, defaultOver the
	// time over which it is judged, and defaultUse the share of the allowed misses that is to
	// be used, where an slo does not say.
	defaultObjective, defaultOver, defaultUse = "99%", "28d", "80%"
	// leastOver and mostOver bound the time over which an objective is judged.
	leastOver, mostOver = time.Hour, 28 * 24 * time.Hour
)

// setTerms sets what an slo promises.
func setTerms(s *scale.Signal, slo *v1alpha1.SLO, path *field.Path) (err *field.Error) {
	if s.Objective, err = percentage(cmp.Or(slo.Objective, defaultObjective), path.Child("objective"), 50, 99.99, "99%"); err != nil {
		return err
	}
	if s.BudgetUse, err = percentage(cmp.Or(slo.BudgetUse, defaultUse), path.Child("budgetUse"), 10, 100, defaultUse); err != nil {
		return err
	}
	text := cmp.Or(slo.Over, defaultOver)
	var failed error
	if days, ok := strings.CutSuffix(text, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		s.Over, failed = time.Duration(n)*24*time.Hour, err
	} else {
		s.Over, failed = time.ParseDuration(text)
	}
	if failed != nil || s.Over < leastOver || s.Over > mostOver {
		return field.Invalid(path.Child("over"), text, `must be days or hours from 1h to 28d, such as "28d"`)
	}
	return nil
}

// percentage returns a percentage from least to most as a share. The error message contains
// the example.
func percentage(text string, path *field.Path, least, most float64, example string) (float64, *field.Error) {
	number, isPercent := strings.CutSuffix(text, "%")
	x, err := strconv.ParseFloat(number, 64)
	if !isPercent || err != nil || !(x >= least && x <= most) {
		return 0, field.Invalid(path, text, fmt.Sprintf("must be a percentage from %g%% to %g%%, such as %q", least, most, example))
	}
	return x / 100, nil
}

// latencySeconds converts a limit to seconds; 0 if there is none. The error message
// contains the example.
func latencySeconds(d *metav1.Duration, path *field.Path, example string) (float64, *field.Error) {
	switch {
	case d == nil:
		return 0, nil
	case d.Duration <= 0:
		return 0, field.Invalid(path, d.Duration.String(), "must be greater than 0, such as "+example)
	}
	return d.Seconds(), nil
}

// withoutRates returns the gauges of a term.
func withoutRates(t Term) Term {
	return slices.DeleteFunc(slices.Clone(t), func(m PodMetric) bool { return m.Rate })
}

// inPercent returns a copy of a term of shares from 0 to 1 that reads them in percent.
func inPercent(t Term) Term {
	out := slices.Clone(t)
	for i := range out {
		out[i].Factor = 100
	}
	return out
}
