// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

// apply is what the page does with a delta.
func apply(t *testing.T, whole, delta []byte) []byte {
	t.Helper()
	var v map[string]json.RawMessage
	var d map[string]json.RawMessage
	if json.Unmarshal(whole, &v) != nil || json.Unmarshal(delta, &d) != nil {
		t.Fatalf("%s\n%s", whole, delta)
	}
	for name, raw := range d {
		if !slices.Contains([]string{"nodes", "problems", "targets", "workloads", "recent"}, name) {
			if v[name] = raw; string(raw) == "null" {
				delete(v, name)
			}
			continue
		}
		var x listDelta
		var list []json.RawMessage
		if json.Unmarshal(raw, &x) != nil || json.Unmarshal(v[name], &list) != nil {
			t.Fatalf("%s: %s", name, raw)
		}
		var whole view.View
		if err := json.Unmarshal([]byte(`{"`+name+`":`+string(v[name])+`}`), &whole); err != nil {
			t.Fatal(err)
		}
		have, order := map[string]json.RawMessage{}, x.Order
		for i, k := range keyedLists(&whole)[name].keys {
			if have[k] = list[i]; x.Order == nil && !x.Empty {
				order = append(order, k)
			}
		}
		for k, e := range x.Put {
			have[k] = e
		}
		out := make([]json.RawMessage, 0, len(order))
		for _, k := range order {
			if have[k] == nil {
				t.Fatalf("%s lacks %s", name, k)
			}
			out = append(out, have[k])
		}
		v[name], _ = json.Marshal(out)
	}
	b, _ := json.Marshal(v)
	return b
}

func normal(t *testing.T, b []byte) (v view.View) {
	t.Helper()
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	for _, empty := range []func(){
		func() { v.Nodes = append([]view.Node{}, v.Nodes...) }, func() { v.Problems = append([]view.NodeSummary{}, v.Problems...) }, func() { v.Targets = append([]view.Target{}, v.Targets...) },
		func() { v.Workloads = append([]view.Workload{}, v.Workloads...) }, func() { v.Recent = append([]view.Event{}, v.Recent...) },
	} {
		empty()
	}
	return v
}

// shuffled is a fleet of which some entries come, go, change and move, and some have equal keys.
func shuffled(rng *rand.Rand) view.View {
	v := fleet()
	v.Time = time.Unix(rng.Int64N(1e9), 0).UTC()
	for i := range rng.IntN(5) {
		v.Workloads = append(v.Workloads, view.Workload{Namespace: "a", Name: fmt.Sprint("w", rng.IntN(4)), Problem: strings.Repeat("p", i)})
		v.Nodes = append(v.Nodes, view.Node{Name: fmt.Sprint("n", 3+i), GPUs: []view.GPU{{UUID: "g", Utilization: percent(float64(rng.IntN(3)))}}})
		v.Recent = append(v.Recent, view.Event{Namespace: "a", Name: "w", Decision: view.Decision{Time: time.Unix(rng.Int64N(3), 0).UTC(), Current: rng.Int32N(3)}})
	}
	rng.Shuffle(len(v.Workloads), func(i, j int) { v.Workloads[i], v.Workloads[j] = v.Workloads[j], v.Workloads[i] })
	if rng.IntN(4) == 0 {
		v.Workloads, v.Targets = nil, nil
	}
	return v
}

// Whatever changes, a view with its differences is the next view.
func TestDeltas(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	f := &feed{}
	var have []byte
	bounded := func(v view.View) view.View { return v.Bounded(v.NodeSummaries(), true) }
	for i := range 500 {
		v := bounded(shuffled(rng))
		before := f.id
		if err := f.advance(&v, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		want, _ := json.Marshal(&v)
		if have == nil {
			have = want
			continue
		}
		frames, ok := f.since(before)
		if !ok || len(frames) != 1 || len(f.frames) > maxFrames {
			t.Fatalf("%d frames, %v", len(frames), ok)
		}
		have = apply(t, have, frames[0].data)
		if d := cmp.Diff(normal(t, want), normal(t, have), cmp.AllowUnexported(view.Counts{}, view.NodeSummary{})); d != "" {
			t.Fatalf("step %d, %s: %s", i, frames[0].data, d)
		}
	}
	if _, ok := f.since("100"); ok {
		t.Error("an id that is not kept any more is known")
	}
}

// source is a fleet that tests change.
type source struct {
	fixed
	mu   sync.Mutex
	view view.View
}

func (s *source) View() view.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.view
	v.Time = time.Now()
	return v
}

func (s *source) set(change func(v *view.View)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.view)
}

// listen opens a stream, and returns its answer and the data of its events.
func listen(t *testing.T, url, token, id string) (r *http.Response, events chan string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/api/v1/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Last-Event-ID", id)
	if r, err = http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	}
	events = make(chan string, 1000)
	go func() {
		defer close(events)
		defer func() { _ = r.Body.Close() }()
		in := bufio.NewReader(r.Body)
		kind := ""
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			if name, ok := strings.CutPrefix(line, "event: "); ok {
				kind = strings.TrimSpace(name)
			}
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				events <- kind + " " + data
			}
		}
	}()
	return r, events
}

// A stream has only what the viewer may see at the moment of each event: no event tells of
// others' pods, a lost right ends what is shown, and a token that ends ends the stream.
func TestScopeOfStreams(t *testing.T) {
	src := &source{view: fleet()}
	c := &cluster{users: map[string][]string{"ann": {"a"}, "root": {"*"}}, known: true}
	url := serve(t, src, c)
	_, events := listen(t, url, "ann", "")
	next := func() string {
		t.Helper()
		select {
		case e, ok := <-events:
			if !ok {
				t.Fatal("the stream has ended")
			}
			for _, secret := range []string{"pb", "GPU-b", "GPU-free", `"n2"`, "wb", "agent", "secret"} {
				if strings.Contains(e, secret) {
					t.Errorf("ann is told %q: %s", secret, e)
				}
			}
			return e
		case <-time.After(time.Minute):
			t.Fatal("no event")
		}
		return ""
	}
	if e := next(); !strings.HasPrefix(e, "view ") || !strings.Contains(e, "GPU-a") {
		t.Errorf("the first event is %s", e)
	}
	src.set(func(v *view.View) {
		v.Workloads = append(slices.Clone(v.Workloads), view.Workload{Namespace: "b", Name: "secret"}, view.Workload{Namespace: "a", Name: "news"})
	})
	for e := next(); !strings.Contains(e, `"news"`); e = next() {
		if !strings.HasPrefix(e, "delta ") {
			t.Errorf("want a difference: %s", e)
		}
	}
	c.mu.Lock()
	c.users["ann"] = []string{"other"}
	c.mu.Unlock()
	e := next()
	for !strings.HasPrefix(e, "view ") {
		e = next()
	}
	if strings.Contains(e, "GPU-a") || strings.Contains(e, "news") {
		t.Errorf("a viewer without rights is told %s", e)
	}
	c.mu.Lock()
	delete(c.users, "ann")
	c.mu.Unlock()
	timeout := time.After(time.Minute)
	for {
		select {
		case _, ok := <-events:
			if !ok {
				return
			}
		case <-timeout:
			t.Fatal("the stream goes on without a token")
		}
	}
}

// An id continues a view; one of a viewer with other rights, or of nobody, gets the view whole.
func TestLastEventID(t *testing.T) {
	src := &source{view: fleet()}
	c := &cluster{users: map[string][]string{"ann": {"a"}, "ben": {"b"}}, known: true}
	h := New(src, c).Handler()
	s := httptest.NewServer(h)
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	ids := map[string]string{}
	for _, token := range []string{"ann", "ben"} {
		w := ask(h, "/api/v1/view?stream=true", "Authorization", "Bearer "+token)
		if ids[token] = w.Header().Get(eventHeader); ids[token] == "" {
			t.Fatal("a view has no id")
		}
	}
	for _, x := range []struct{ token, id, want string }{{"ann", ids["ann"], "delta "}, {"ann", ids["ben"], "view "}, {"ben", "x", "view "}, {"ben", "", "view "}} {
		_, events := listen(t, s.URL, x.token, x.id)
		if e := <-events; !strings.HasPrefix(e, x.want) || x.token == "ann" && strings.Contains(e, "pb2") {
			t.Errorf("%s with %q: %s", x.token, x.id, e)
		}
	}
}

// A viewer has a bounded number of streams; others are not affected, and one that ends makes
// room.
func TestStreamsAreBounded(t *testing.T) {
	c := &cluster{users: map[string][]string{"ann": {"a"}, "ben": {"b"}}, known: true}
	url := serve(t, &source{view: fleet()}, c)
	var open []*http.Response
	for range maxViewerStreams {
		r, _ := listen(t, url, "ann", "")
		open = append(open, r)
	}
	r, _ := listen(t, url, "ann", "")
	if b, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" {
		t.Errorf("one more: %d %s", r.StatusCode, b)
	}
	if r, _ := listen(t, url, "ben", ""); r.StatusCode != http.StatusOK {
		t.Errorf("another viewer: %d", r.StatusCode)
	}
	_ = open[0].Body.Close()
	for deadline := time.Now().Add(time.Minute); ; {
		if r, _ = listen(t, url, "ann", ""); r.StatusCode == http.StatusOK {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("a stream that has ended still counts")
		}
	}
}

// However many accounts of a namespace open streams, other namespaces and users can, and what ends is forgotten.
func TestStreamsOfManyAccounts(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		var s streams
		var open []Viewer
		for range 2000 {
			v := Viewer(&user{name: fmt.Sprintf("greedy/account-%d", r.IntN(60))})
			if s.begin(v) {
				open = append(open, v)
			}
			if len(open) > 0 && r.IntN(8) == 0 {
				i := r.IntN(len(open))
				s.end(open[i])
				open = slices.Delete(open, i, i+1)
			}
		}
		if len(open) > maxPayerStreams {
			t.Fatalf("seed %d: one namespace has %d streams", seed, len(open))
		}
		for _, name := range []string{"other/account", "a person"} {
			v := &user{name: name}
			if !s.begin(v) {
				t.Errorf("seed %d: %s cannot open a stream", seed, name)
			}
			open = append(open, v)
		}
		for _, v := range open {
			s.end(v)
		}
		if s.all != 0 || len(s.open) != 0 {
			t.Errorf("seed %d: %d streams are left, of %v", seed, s.all, s.open)
		}
	}
	var s streams
	for range maxStreams {
		if !s.begin(everybody{}) {
			t.Fatal("without authentication, all are one")
		}
	}
	for range maxStreams {
		s.end(everybody{})
	}
	if s.begin(everybody{}); s.all != 1 || len(s.open) != 1 {
		t.Errorf("%d streams of %v", s.all, s.open)
	}
}
