// SPDX-License-Identifier: Apache-2.0

package policy

// missMetrics names the counters and histograms of a server from which missed requests are
// counted.
type missMetrics struct {
	ended      []string // counters of requests that were answered or aborted, of newer releases first
	abortedBy  Term     // of these, the aborted ones: each is added
	aborted    string   // counter of aborted requests that ended does not count; empty: none
	first      string   // histogram of the time to the first token
	ofRequests string   // histogram of the requests' mean time between tokens; empty: none
	ofTokens   []string // histograms of the times between tokens, of newer releases first

	promptTokens, outputTokens string // counters
}

// of returns the counters for limits of the time between tokens and of the time to the
// first token, in seconds; 0: no limit.
func (m *missMetrics) of(between, first float64) *Misses {
	counter := func(names ...string) (out Term) {
		for _, name := range names {
			out = append(out, PodMetric{Name: name, Rate: true, UpperBound: maxCount})
		}
		return out
	}
	out := &Misses{Ended: counter(m.ended...), PromptTokens: counter(m.promptTokens), OutputTokens: counter(m.outputTokens)}
	for _, x := range m.abortedBy {
		x.Rate, x.UpperBound = true, maxCount
		out.Aborted = append(out.Aborted, Term{x})
	}
	if m.aborted != "" {
		out.Extra = counter(m.aborted)
	}
	if first > 0 {
		out.First = []Histogram{newHistogram(m.first, first, false)}
	}
	if between > 0 {
		if m.ofRequests != "" {
			out.Token = append(out.Token, newHistogram(m.ofRequests, between, false))
		}
		for _, name := range m.ofTokens {
			out.Token = append(out.Token, newHistogram(name, between, true))
		}
	}
	return out
}

// newHistogram returns the terms of a histogram around a limit.
func newHistogram(name string, limit float64, ofTokens bool) Histogram {
	bucket := func(above, edge bool) Term {
		m := PodMetric{Name: name + "_bucket", Bucket: Bucket{Limit: limit, Above: above, Edge: edge}, Rate: !edge, UpperBound: maxCount}
		return Term{m}
	}
	return Histogram{
		Limit: limit, OfTokens: ofTokens, Count: Term{{Name: name + "_count", Rate: true, UpperBound: maxCount}},
		Below: bucket(false, false), Above: bucket(true, false), Lower: bucket(false, true), Upper: bucket(true, true),
	}
}
