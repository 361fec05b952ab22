// SPDX-License-Identifier: Apache-2.0

package webui

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/gpupilot/gpupilot/internal/window/view"
)

// large has a history of about a megabyte.
type large struct{ fixed }

func (l large) Minutes(_, _ string, q *view.MinuteQuery) (view.Minutes, bool, error) {
	return view.Minutes{First: q.From, Step: q.Step, Metrics: []view.MinuteMetric{{Name: strings.Repeat("x", 1<<20)}}}, true, nil
}

// stuck is a client that reads nothing until it is let go.
type stuck struct {
	*httptest.ResponseRecorder
	held *heldBytes
	gone chan struct{}
}

type heldBytes struct {
	mu   sync.Mutex
	held map[string]int
	most map[string]int
}

func (m *heldBytes) add(name string, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[name] += n
	m.most[name] = max(m.most[name], m.held[name])
}

func (s *stuck) Write(p []byte) (int, error) {
	s.held.add("greedy", len(p))
	<-s.gone
	s.held.add("greedy", -len(p))
	return len(p), nil
}

// Whoever reads nothing makes the controller hold a bounded number of bytes, and the others are answered.
func TestSlowReadersOfLargeAnswers(t *testing.T) {
	c := &cluster{users: map[string][]string{"other/reader": {"llm"}, "person": {"llm"}}}
	for i := range 50 {
		c.users[fmt.Sprintf("greedy/%d", i)] = []string{"llm"}
	}
	p := New(large{fixed{fleet()}}, c)
	h := p.Handler()
	const path = "/api/v1/minutes?namespace=llm&name=chat"
	m := &heldBytes{held: map[string]int{}, most: map[string]int{}}
	gone := make(chan struct{})
	var all sync.WaitGroup
	var begun sync.WaitGroup
	codes := make([]int, 400)
	begun.Add(len(codes))
	for i := range codes {
		all.Go(func() {
			r := httptest.NewRequest(http.MethodGet, path, http.NoBody)
			r.RemoteAddr = fmt.Sprintf("10.0.%d.%d:1", i/250, i%250)
			r.Header.Set("Authorization", "Bearer "+fmt.Sprintf("greedy/%d", i%50))
			w := &stuck{httptest.NewRecorder(), m, gone}
			begun.Done()
			h.ServeHTTP(w, r)
			codes[i] = w.Code
		})
	}
	begun.Wait()
	for _, name := range []string{"other/reader", "person"} {
		if w := ask(h, path, "Authorization", "Bearer "+name); w.Code != http.StatusOK || w.Body.Len() < 1<<20 {
			t.Errorf("%s: %d %.200s", name, w.Code, w.Body)
		}
	}
	close(gone)
	all.Wait()
	if most := m.most["greedy"]; most > maxPayerSending+len(codes)*smallAnswer {
		t.Errorf("%d MiB were held for clients that read nothing", most>>20)
	}
	if p.sending.all != 0 || len(p.sending.by) != 0 {
		t.Errorf("%d bytes are left, of %v", p.sending.all, p.sending.by)
	}
}
