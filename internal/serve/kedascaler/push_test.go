// SPDX-License-Identifier: Apache-2.0

package kedascaler

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/gpupilot/gpupilot/internal/promql/queries"
	pb "github.com/gpupilot/gpupilot/internal/serve/kedascaler/externalscaler"
	"github.com/gpupilot/gpupilot/internal/serve/metricquery"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// backend answers the query of a test: with no series until it has a value.
type backend struct {
	mu    sync.Mutex
	value *float64
	asked int
}

// noSeries is a query's error after which the next evaluation may have a value.
type noSeries struct{ error }

func (e noSeries) Public() string { return e.Error() }
func (noSeries) Reason() string   { return "no_series" }
func (noSeries) Answered() bool   { return true }

func (b *backend) query(context.Context, string, string) (series.Sample, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asked++; b.value == nil {
		return series.Sample{}, noSeries{errors.New("no series")}
	}
	return series.Sample{Value: *b.value, At: time.Now()}, nil
}

func (b *backend) set(v float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.value = &v
}

func (b *backend) evaluations() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked
}

// pushes records what a stream sends, and when.
type pushes struct {
	grpc.ServerStream
	ctx context.Context
	mu  sync.Mutex
	is  bool
	at  time.Time
}

func (p *pushes) Context() context.Context { return p.ctx }

func (p *pushes) Send(m *pb.IsActiveResponse) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.is, p.at = m.GetResult(), time.Now()
	return nil
}

func (p *pushes) last() (active bool, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.is, p.at
}

// A stream pushes the activation within 1.2 s of the sample, whenever the sample comes,
// also where the query had no series before. Without a stream the query runs every 2 s.
func TestPushedActivation(t *testing.T) {
	for offset := time.Duration(0); offset < 2*time.Second; offset += 70 * time.Millisecond {
		for _, empty := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				b := &backend{}
				if !empty {
					b.set(0)
				}
				took, perMinute := activate(t, b, time.Minute+offset)
				if took > 1200*time.Millisecond {
					t.Errorf("offset %s, empty %t: pushed after %s", offset, empty, took)
				}
				if perMinute > 31 {
					t.Errorf("offset %s, empty %t: without a stream the query ran %d times in a minute", offset, empty, perMinute)
				}
			})
		}
	}
}

// activate opens a stream, sets the value after the time, and returns how long the push
// took, and how often the query ran in a minute after the stream had ended.
func activate(t *testing.T, b *backend, after time.Duration) (took time.Duration, perMinute int) {
	ctx, cancel := context.WithCancel(t.Context())
	scheduler := queries.NewScheduler(queries.SchedulerConfig{}, queries.SchedulerDeps{Query: b.query})
	keeper := metricquery.New(metricquery.Config{Every: time.Second}, metricquery.Deps{
		Watch: func(_ context.Context, _ client.Object, h toolscache.ResourceEventHandler) error {
			u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"query": map[string]any{"promql": "queue"}}}}
			u.SetNamespace("ml")
			u.SetName("queue")
			h.OnAdd(u, true)
			return nil
		},
		AwaitInstalled: func(context.Context, client.Object) error { return nil },
		Queries:        scheduler, Leading: func() bool { return false },
		LimitQuery: func(_, promql string) (string, bool, error) { return promql, false, nil },
	})
	trigger := map[string]string{"query": "queue", "target": "10"}
	objects := NewObjects(nil, nil)
	objects.by[types.NamespacedName{Namespace: "ml", Name: "chat"}] = &object{ScaledObject: &ScaledObject{
		Namespace: "ml", Name: "chat", Triggers: []ObjectTrigger{{Type: "external-push", Metadata: trigger}},
	}}
	s, err := New(Config{
		Certificate: func() (*tls.Certificate, error) { return nil, errors.New("not used") }, Clients: Clients{Anyone: true},
	}, &Sources{Objects: objects, Queries: keeper})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { scheduler.Run(ctx) })
	running.Go(func() { keeper.Run(ctx) })
	synctest.Wait() // the MetricQuery is known
	streaming, end := context.WithCancel(ctx)
	out := &pushes{ctx: streaming}
	running.Go(func() {
		_ = s.StreamIsActive(&pb.ScaledObjectRef{Namespace: "ml", Name: "chat", ScalerMetadata: trigger}, out) // it ends with streaming
	})
	time.Sleep(after)
	began := time.Now()
	b.set(25)
	time.Sleep(5 * time.Second)
	synctest.Wait()
	active, at := out.last()
	if !active {
		t.Fatal("the activation was not pushed")
	}
	end()
	time.Sleep(5 * time.Second)
	before := b.evaluations()
	time.Sleep(time.Minute)
	perMinute = b.evaluations() - before
	cancel()
	running.Wait()
	return at.Sub(began), perMinute
}
