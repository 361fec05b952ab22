// SPDX-License-Identifier: Apache-2.0

// Package events writes Events, and those of problems that last.
package events

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventsv1client "k8s.io/client-go/kubernetes/typed/events/v1"

	"github.com/gpupilot/gpupilot/internal/base/excerpt"
	"github.com/gpupilot/gpupilot/internal/base/fair"
)

// Recorder writes Events. It makes a new Event each time. client-go's recorder would
// only count up an earlier Event with the same reason, and drop the new message, which
// explains the decision.
type Recorder struct {
	events     eventsv1client.EventsGetter
	controller string
	instance   string
	log        *slog.Logger
	wake       chan struct{} // of length 1
	dropped    atomic.Uint64
	serial     atomic.Uint64

	mu    sync.Mutex
	queue fair.Queue[queuedEvent]
}

// queuedEvent is an Event to write.
type queuedEvent struct {
	*eventsv1.Event
	once bool // an Event of this name is the same one
}

const (
	// maxNote is the API server's limit of an Event's note, in bytes.
	maxNote = 1024
	// maxEvents bounds the queued Events, and maxOfNamespace those of a namespace. More are
	// dropped and counted, but one of each namespace is always queued.
	maxEvents      = 256
	maxOfNamespace = 64
	// flushGrace bounds the time that queued Events take at the end. It is shorter than a shutdown may take.
	flushGrace = time.Second
)

// NewRecorder makes a recorder for one instance of a controller.
func NewRecorder(events eventsv1client.EventsGetter, controller, instance string, log *slog.Logger) *Recorder {
	return &Recorder{
		events: events, controller: controller, instance: instance, log: log, wake: make(chan struct{}, 1),
	}
}

// Event records an Event about an object. kind is Normal or Warning; reason and action
// are one word each. It never blocks.
func (r *Recorder) Event(about corev1.ObjectReference, kind, reason, action, note string) {
	e := r.newEvent(about, kind, reason, action, note)
	e.Name = eventName(about.Name, fmt.Sprintf("%x%03x", e.EventTime.UnixNano(), r.serial.Add(1)&0xfff))
	r.queueEvent(queuedEvent{e, false})
}

// EventOnce is Event, but the Event's name follows from its contents: of several equal
// Events, from other replicas or an earlier leader too, the API server has one until it
// expires.
func (r *Recorder) EventOnce(about corev1.ObjectReference, kind, reason, action, note string) {
	sum := sha256.Sum256([]byte(strings.Join([]string{string(about.UID), kind, reason, action, note}, "\x00")))
	e := r.newEvent(about, kind, reason, action, note)
	e.Name = eventName(about.Name, hex.EncodeToString(sum[:10]))
	r.queueEvent(queuedEvent{e, true})
}

// maxEventName is the API server's limit of an Event's name.
const maxEventName = 253

// eventName returns the name of an Event about an object, whose name may be as long as
// the Event's may be.
func eventName(object, suffix string) string {
	object = object[:min(len(object), maxEventName-1-len(suffix))]
	return strings.TrimRight(object, "-.") + "." + suffix
}

// newEvent is an Event without a name.
func (r *Recorder) newEvent(about corev1.ObjectReference, kind, reason, action, note string) *eventsv1.Event {
	return &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: cmp.Or(about.Namespace, metav1.NamespaceDefault)},
		EventTime:  metav1.NowMicro(), Type: kind, Reason: reason, Action: action, Note: excerpt.Of(note, maxNote),
		Regarding: about, ReportingController: r.controller, ReportingInstance: excerpt.Of(r.instance, 128),
	}
}

func (r *Recorder) queueEvent(e queuedEvent) {
	if !r.put(e) {
		r.dropped.Add(1)
		return
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// put queues an Event. It reports false if there are too many.
func (r *Recorder) put(e queuedEvent) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own := r.queue.LenOf(fair.Namespace(e.Namespace)); own > 0 && (own >= maxOfNamespace || r.queue.Len() >= maxEvents) {
		return false
	}
	r.queue.Put(fair.Namespace(e.Namespace), e)
	return true
}

// take returns the next Event. It reports false if there is none.
func (r *Recorder) take() (queuedEvent, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.queue.Take()
}

// Run writes the Events until ctx is done. It then writes the queued ones for up to flushGrace: a status that a new
// leader finds means that its Event was recorded, so a lost Event would not be recorded again.
func (r *Recorder) Run(ctx context.Context) {
	writing, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(flushGrace):
			cancel()
		case <-writing.Done():
		}
	})
	defer stop()
	for writing.Err() == nil {
		e, ok := r.take()
		if ok {
			r.write(writing, e)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
	}
}

func (r *Recorder) write(ctx context.Context, e queuedEvent) {
	_, err := r.events.Events(e.Namespace).Create(ctx, e.Event, metav1.CreateOptions{})
	if err != nil && !(e.once && apierrors.IsAlreadyExists(err)) {
		r.dropped.Add(1)
		r.log.Warn("event lost", "about", e.Regarding.Name, "reason", e.Reason, "err", err)
	}
}

// Dropped returns the number of lost Events.
func (r *Recorder) Dropped() uint64 { return r.dropped.Load() }
