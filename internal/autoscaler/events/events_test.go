// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"
)

// slowEvents takes some time to write an Event, unless the request is cancelled before.
type slowEvents struct {
	eventsv1client.EventInterface
	takes   time.Duration
	mu      sync.Mutex
	written []string
}

func (s *slowEvents) Events(string) eventsv1client.EventInterface { return s }

func (s *slowEvents) Create(ctx context.Context, e *eventsv1.Event, _ metav1.CreateOptions) (*eventsv1.Event, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(s.takes):
		s.mu.Lock()
		defer s.mu.Unlock()
		s.written = append(s.written, e.Reason)
		return e, nil
	}
}

// Events that are queued or under way when the controller ends are written, for a second at most.
func TestEventsAtTheEnd(t *testing.T) {
	f := func(takes time.Duration, wantWritten int, wantTime time.Duration) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			api := &slowEvents{takes: takes}
			r := NewRecorder(api, "test", "test", slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				r.Run(ctx)
			}()
			for i := range 5 {
				r.Event(corev1.ObjectReference{Namespace: "ns", Name: "x"}, corev1.EventTypeNormal, fmt.Sprint(i), "Test", "")
			}
			synctest.Wait() // the first is under way
			cancel()
			began := time.Now()
			<-done
			if len(api.written) != wantWritten || time.Since(began) != wantTime {
				t.Errorf("requests of %s: %d Events in %s, want %d in %s", takes, len(api.written), time.Since(began), wantWritten, wantTime)
			}
		})
	}
	f(10*time.Millisecond, 5, 50*time.Millisecond)
	f(300*time.Millisecond, 3, flushGrace)
	f(time.Hour, 0, flushGrace)
}

// A namespace with many Events loses its own, and delays those of others by one each.
func TestEventsOfOneNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &slowEvents{takes: time.Second}
		r := NewRecorder(api, "test", "test", slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer func() { cancel(); synctest.Wait() }()
		go r.Run(ctx)
		record := func(namespace string, n int) {
			for range n {
				r.Event(corev1.ObjectReference{Namespace: namespace, Name: "x"}, corev1.EventTypeNormal, namespace, "Test", "")
			}
		}
		for i := range 10 {
			record(fmt.Sprint("noisy", i), 1000)
		}
		record("quiet", 1)
		state := func() (written []string, queued, ofNoisy int) {
			synctest.Wait()
			r.mu.Lock()
			defer r.mu.Unlock()
			api.mu.Lock()
			defer api.mu.Unlock()
			return slices.Clone(api.written), r.queue.Len(), r.queue.LenOf(fair.Namespace("noisy0"))
		}
		if _, queued, ofNoisy := state(); queued > maxEvents+10 || ofNoisy > maxOfNamespace {
			t.Errorf("%d Events wait, %d of one namespace", queued, ofNoisy)
		}
		time.Sleep(13 * time.Second)
		if written, _, _ := state(); !slices.Contains(written, "quiet") {
			t.Errorf("the Event of another namespace is not written: %v", written)
		}
		time.Sleep(time.Hour)
		if written, queued, _ := state(); queued != 0 || uint64(len(written))+r.Dropped() != 10_001 {
			t.Errorf("%d Events remain, %d were written and %d lost", queued, len(written), r.Dropped())
		}
	})
}
