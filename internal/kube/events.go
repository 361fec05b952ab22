// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"
)

// Recorder writes Events. client-go's own recorder counts up an Event that
// has the reason of an earlier one and drops the new message; a decision's
// message is what it is for, so each gets an Event of its own here.
type Recorder struct {
	events     eventsv1client.EventsGetter
	controller string
	instance   string
	log        *slog.Logger
	queue      chan *eventsv1.Event
	dropped    atomic.Uint64
	serial     atomic.Uint64
}

const (
	// maxNote is what the API server allows for an Event's note, in bytes.
	maxNote = 1024
	// maxEvents may wait to be written; more are dropped and counted.
	maxEvents = 256
)

// NewRecorder makes a recorder for a controller, an instance of which this is.
func NewRecorder(events eventsv1client.EventsGetter, controller, instance string, log *slog.Logger) *Recorder {
	return &Recorder{events: events, controller: controller, instance: instance, log: log, queue: make(chan *eventsv1.Event, maxEvents)}
}

// Event says something about an object. kind is Normal or Warning, reason and
// action one word each. It never blocks.
func (r *Recorder) Event(about corev1.ObjectReference, kind, reason, action, note string) {
	now := time.Now()
	e := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault), Name: fmt.Sprintf("%s.%x%03x", about.Name, now.UnixNano(), r.serial.Add(1)&0xfff),
		},
		EventTime: metav1.NewMicroTime(now), Type: kind, Reason: reason, Action: action, Note: shorten(note, maxNote),
		Regarding: about, ReportingController: r.controller, ReportingInstance: shorten(r.instance, 128),
	}
	select {
	case r.queue <- e:
	default:
		r.dropped.Add(1)
	}
}

// Run writes the Events until ctx is done.
func (r *Recorder) Run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.queue:
			if _, err := r.events.Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{}); err != nil && ctx.Err() == nil {
				r.dropped.Add(1)
				r.log.Warn("event lost", "about", e.Regarding.Name, "reason", e.Reason, "err", err)
			}
		}
	}
}

// Dropped is how many Events were lost.
func (r *Recorder) Dropped() uint64 { return r.dropped.Load() }

// shorten cuts s to at most n bytes, between runes, and says that it did.
func shorten(s string, n int) string {
	const ellipsis = "…"
	if len(s) <= n {
		return s
	}
	cut := n - len(ellipsis)
	for cut > 0 && s[cut]&0xc0 == 0x80 {
		cut--
	}
	return s[:cut] + ellipsis
}
