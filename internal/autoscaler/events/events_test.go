// SPDX-License-Identifier: Apache-2.0

package events

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"
)

// slowEvents takes some time to write an Event, unless the request is cancelled before.
type slowEvents struct {
	eventsv1client.EventInterface
	takes   time.Duration
	written []string
}

func (s *slowEvents) Events(string) eventsv1client.EventInterface { return s }

func (s *slowEvents) Create(ctx context.Context, e *eventsv1.Event, _ metav1.CreateOptions) (*eventsv1.Event, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(s.takes):
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
