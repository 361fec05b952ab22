// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpupilot/gpupilot/api/v1alpha1"
	"github.com/gpupilot/gpupilot/internal/replay/trace"
	"github.com/gpupilot/gpupilot/internal/scale/budget"
	"github.com/gpupilot/gpupilot/internal/scale/policy"
	"github.com/gpupilot/gpupilot/internal/window/discovery"
	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/requests"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// The edges of vLLM's histograms, in seconds, and infinity.
var (
	firstEdges   = append(slices.Clone(firstTokenEdges), math.Inf(1))
	betweenEdges = append(slices.Clone(tokenEdges), math.Inf(1))
)

// server is a replica that exposes what vLLM does, and knows the truth.
type server struct {
	replica
	target        *series.Target
	reader        *page.Reader
	first, token  []float64 // by edge
	done, aborted float64
	truth         *truth
}

// truth counts the requests of all servers.
type truth struct{ ended, missed, late, slow float64 }

// completed implements observer.
func (s *server) completed(_, ttft, itl float64) {
	s.done++
	observe(s.first, firstEdges, ttft)
	if itl > 0 {
		observe(s.token, betweenEdges, itl)
	}
	s.truth.ended++
	late, slow := ttft > s.m.TTFTLimit, itl > s.m.ITLLimit
	if late {
		s.truth.late++
	}
	if slow {
		s.truth.slow++
	}
	if late || slow {
		s.truth.missed++
	}
}

// abandoned implements observer.
func (s *server) abandoned(float64) {
	s.done++
	s.aborted++
	s.truth.ended++
	s.truth.missed++
}

func observe(counts, edges []float64, x float64) {
	for i, edge := range edges {
		if x <= edge {
			counts[i]++
		}
	}
}

func (s *server) page() string {
	var b strings.Builder
	histogram := func(name string, edges, counts []float64) {
		for i, edge := range edges {
			le := fmt.Sprint(edge)
			if edge == math.Trunc(edge) && !math.IsInf(edge, 1) {
				le += ".0" // as Python writes it
			}
			fmt.Fprintf(&b, "%s_bucket{engine=\"0\",le=%q,model_name=\"m\"} %v\n", name, le, counts[i])
		}
		fmt.Fprintf(&b, "%s_count{engine=\"0\",model_name=\"m\"} %v\n", name, counts[len(counts)-1])
	}
	histogram("vllm:time_to_first_token_seconds", firstEdges, s.first)
	histogram("vllm:request_time_per_output_token_seconds", betweenEdges, s.token)
	fmt.Fprintf(&b, "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"m\"} %v\n", s.done-s.aborted)
	fmt.Fprintf(&b, "vllm:request_success_total{engine=\"0\",finished_reason=\"abort\",model_name=\"m\"} %v\n", s.aborted)
	return b.String()
}

// restart begins all counters at zero.
func (s *server) restart() {
	s.first, s.token = make([]float64, len(firstEdges)), make([]float64, len(betweenEdges))
	s.done, s.aborted = 0, 0
}

// attainedBy simulates three servers for most of an hour, of which one restarts and one does not
// answer for a while, and counts their requests from their pages.
func attainedBy(t *testing.T, first, token time.Duration) (budget.Report, requests.Edges, truth) {
	t.Helper()
	slo := &v1alpha1.SLO{}
	m := preset(t, "llama-8b")
	m.TTFTLimit, m.ITLLimit = math.Inf(1), math.Inf(1)
	if first > 0 {
		slo.TimeToFirstToken, m.TTFTLimit = &metav1.Duration{Duration: first}, first.Seconds()
	}
	if token > 0 {
		slo.InterTokenLatency, m.ITLLimit = &metav1.Duration{Duration: token}, token.Seconds()
	}
	c, err := policy.Compile(&v1alpha1.GPUAutoscaler{Spec: v1alpha1.GPUAutoscalerSpec{
		MaxReplicas: 3, Signals: []v1alpha1.Signal{{Preset: v1alpha1.PresetVLLM, SLO: slo}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	src := &c.Sources[0]
	var all []policy.PodMetric
	for _, term := range src.AllTerms() {
		all = append(all, term...)
	}
	store := series.New(series.Config{})
	var is truth
	servers := make([]*server, 3)
	for i := range servers {
		labels := series.TargetLabels{Namespace: "ns", Pod: fmt.Sprint(i)}
		s := &server{target: store.Target(fmt.Sprint(i), labels), truth: &is}
		s.reader = page.NewPod(page.Config{Target: s.target, Labels: labels, Metrics: discovery.PodMetrics(all)})
		s.m, s.patience = &m, 60
		s.restart()
		servers[i] = s
	}
	begin := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	var meter budget.Meter
	var ledger budget.Ledger
	var edges requests.Edges
	random := rand.New(rand.NewPCG(5, 6))
	var batch series.Batch
	const seconds, interval = 3000, 5
	next := 0.0
	for now := 0; now < seconds; now += interval {
		at := begin.Add(time.Duration(now) * time.Second)
		rate := 8 + 7*math.Sin(float64(now)/400) // requests/s, of all servers
		for ; next < float64(now); next += random.ExpFloat64() / rate {
			s := servers[random.IntN(len(servers))]
			s.advance(next, s)
			s.add(trace.Request{At: next, Prompt: 500 + 6000*random.Float64()*random.Float64(), Output: 20 + 300*random.Float64()}, s)
		}
		for i, s := range servers {
			s.advance(float64(now), s)
			s.abandonExpired(s)
			if i == 1 && now > 800 && now < 900 {
				continue // it does not answer
			}
			batch.Reset()
			if err := s.reader.Read([]byte(s.page())); err != nil {
				t.Fatal(err)
			}
			if s.reader.IsOld() {
				continue
			}
			s.reader.Fill(&batch, 0)
			if _, err := s.target.Append(at, &batch); err != nil {
				t.Fatal(err)
			}
			if i == 2 && now%800 == 795 {
				s.restart()
			}
		}
		for i := range servers {
			if s, e, ok := requests.Of(store, src.Misses, "ns", fmt.Sprint(i), at, 2*interval*time.Second); ok {
				edges = requests.Edges{}
				edges.Widen(&e)
				n := meter.Add(fmt.Sprint(i), s)
				ledger.Add(at, n)
			}
		}
	}
	return ledger.Report(begin.Add(seconds*time.Second), 0.99, 24*time.Hour), edges, is
}

// What is measured from the servers' histograms is what the clients saw, within 0.2 points.
func TestAttainedIsTheTruth(t *testing.T) {
	const within = 0.002
	kept := func(n float64, is *truth) float64 { return 1 - n/is.ended }

	r, edges, is := attainedBy(t, time.Second, 0)
	if truth := kept(is.missed, &is); math.Abs(r.Attained-truth) > within || math.Abs(r.AttainedMost-truth) > within || !edges.First.IsEdge() {
		t.Errorf("a first token within 1s: %.4f to %.4f, want %.4f (edges %+v)", r.Attained, r.AttainedMost, truth, edges)
	} else {
		t.Logf("a first token within 1s: %.4f to %.4f, want %.4f", r.Attained, r.AttainedMost, truth)
	}
	if math.Abs(r.Ended/is.ended-1) > 0.01 {
		t.Errorf("%v requests, want %v", r.Ended, is.ended)
	}

	r, edges, is = attainedBy(t, 0, 25*time.Millisecond)
	if truth := kept(is.missed, &is); math.Abs(r.Attained-truth) > within || math.Abs(r.AttainedMost-truth) > within || !edges.Token.IsEdge() {
		t.Errorf("25ms between tokens: %.4f to %.4f, want %.4f (edges %+v)", r.Attained, r.AttainedMost, truth, edges)
	} else {
		t.Logf("25ms between tokens: %.4f to %.4f, want %.4f", r.Attained, r.AttainedMost, truth)
	}

	// Of both together the bounds enclose the truth.
	r, _, is = attainedBy(t, time.Second, 25*time.Millisecond)
	if truth := kept(is.missed, &is); r.Attained-within > truth || r.AttainedMost+within < truth || r.AttainedMost-r.Attained > 2*(1-truth) {
		t.Errorf("both limits: %.4f to %.4f, want %.4f within", r.Attained, r.AttainedMost, truth)
	} else {
		t.Logf("both limits: %.4f to %.4f, want %.4f within", r.Attained, r.AttainedMost, truth)
	}

	// A limit between two edges: both are named, and their bounds enclose the truth.
	r, edges, is = attainedBy(t, 0, 15*time.Millisecond)
	if truth := kept(is.missed, &is); r.Attained-within > truth || r.AttainedMost+within < truth || edges.Token.IsEdge() || edges.Token.Lower != 0.01 || edges.Token.Upper != 0.025 {
		t.Errorf("15ms between tokens: %.4f to %.4f, want %.4f within, and the edges 10ms and 25ms; they are %+v", r.Attained, r.AttainedMost, truth, edges)
	} else {
		t.Logf("15ms between tokens: %.4f to %.4f, want %.4f within", r.Attained, r.AttainedMost, truth)
	}
}
