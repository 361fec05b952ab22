// SPDX-License-Identifier: Apache-2.0

package apiwatch

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// cluster is an API server that knows where pods run.
type cluster struct {
	mu     sync.Mutex
	on     map[string]string // by namespace/name
	refuse int
	asked  []string
}

func (c *cluster) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	selector := r.URL.Query().Get("fieldSelector")
	c.asked = append(c.asked, r.URL.Path+" "+selector)
	if c.refuse != 0 {
		w.WriteHeader(c.refuse)
		_, _ = io.WriteString(w, `{"message":"no, thanks"}`)
		return
	}
	namespace := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), "/pods")
	node, ok := c.on[namespace+"/"+strings.TrimPrefix(selector, "metadata.name=")]
	if !ok {
		_, _ = io.WriteString(w, `{"items":[]}`)
		return
	}
	fmt.Fprintf(w, `{"items":[{"metadata":{"name":"x"},"spec":{"nodeName":%q,"devices":"a pod has other things here"}}]}`, node)
}

func (c *cluster) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func holds(pods ...string) (allocs []gpu.Allocation) {
	for _, p := range pods {
		namespace, name, _ := strings.Cut(p, "/")
		allocs = append(allocs, gpu.Allocation{Owner: gpu.Owner{Namespace: namespace, Pod: name}})
	}
	return allocs
}

func TestNodeIsWhereItsPodsRun(t *testing.T) {
	f := func(on map[string]string, seen []gpu.Allocation, want, wantErr string) {
		t.Helper()
		n := FindNode(connect(t, &cluster{on: on}), slog.New(slog.DiscardHandler))
		n.Saw(seen)
		got, err := n.ask(t.Context())
		if got != want || (err == nil) != (wantErr == "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("%v: %q, %v; want %q, %q", seen, got, err, want, wantErr)
		}
	}
	on := map[string]string{"a/p": "n1", "a/q": "n1", "b/p": "n2", "b/pending": ""}
	f(on, holds("a/p"), "n1", "")
	f(on, holds("a/p", "a/p", "a/q", "b/p"), "n1", "") // b/p has moved
	f(on, holds("b/p", "a/p", "a/q"), "n1", "")
	f(on, holds("a/p", "b/p"), "", "several nodes")
	f(on, holds("a/gone"), "", "NODE_NAME is not set")
	f(on, holds("b/pending"), "", "has no such pod")
	f(on, holds("a/gone", "a/p"), "n1", "")
	f(on, nil, "", "NODE_NAME is not set")
}

// A name that was learned is used, and another one later is, too.
func TestNodeIsLearned(t *testing.T) {
	c := &cluster{refuse: http.StatusForbidden, on: map[string]string{"a/p": "n1"}}
	n := FindNode(connect(t, c), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	names := make(chan string)
	var loops sync.WaitGroup
	loops.Go(func() { n.Run(ctx) })
	loops.Go(func() {
		n.each(ctx, func(ctx context.Context, name string) {
			select {
			case names <- name:
				<-ctx.Done()
			case <-ctx.Done():
			}
		})
	})
	if err := n.err(); err == nil || !strings.Contains(err.Error(), "no pod with a device yet") {
		t.Errorf("before any pod was seen: %v", err)
	}
	n.Saw(nil)
	n.Saw(holds("a/p"))
	until(t, func() bool { return strings.Contains(fmt.Sprint(n.err()), "403: no, thanks") })
	c.set(func() { c.refuse = 0 })
	n.Saw(holds("a/p"))
	if name := <-names; name != "n1" || n.err() != nil {
		t.Errorf("learned %q, %v", name, n.err())
	}
	n.found("n1")
	n.failed(errNoName)
	n.found("n2")
	if name := <-names; name != "n2" {
		t.Errorf("learned %q", name)
	}
	cancel()
	loops.Wait()
	c.set(func() {
		if want := "/api/v1/namespaces/a/pods metadata.name=p"; c.asked[0] != want {
			t.Errorf("asked for %s", c.asked[0])
		}
	})
}

func TestNodeIsGiven(t *testing.T) {
	n := GivenNode("n1")
	n.Saw(holds("a/p"))
	n.Run(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	var names []string
	n.each(ctx, func(_ context.Context, name string) {
		names = append(names, name)
		cancel()
	})
	if fmt.Sprint(names) != "[n1]" || n.err() != nil {
		t.Errorf("%v, %v", names, n.err())
	}
}
