// SPDX-License-Identifier: Apache-2.0

package events

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Notice is a problem of an object that lasts, such as a rule that fails.
type Notice struct {
	About  corev1.ObjectReference
	Reason string // one word
	Action string // one word
	Note   string
}

// OfPods returns a notice about each pod.
func OfPods(pods []*corev1.Pod, reason, note string) (list []Notice) {
	for _, pod := range pods {
		about := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
		list = append(list, Notice{About: about, Reason: reason, Note: note})
	}
	return list
}

// The bounds of the Events of notices. Tenants make objects and texts.
const (
	// noteEvery is the time between the first two Events with the same reason about an
	// object. It doubles each time, because some texts differ at each check.
	noteEvery = time.Minute
	// noteAgain is when an unchanged problem gets a new Event: the API server has
	// deleted the last one, by default after an hour.
	noteAgain = 65 * time.Minute
	// notesPerNamespace and notesInAll bound the Events within noteEvery.
	notesPerNamespace = 10
	notesInAll        = 120
	maxNotes          = 10_000 // remembered
)

// Notices makes Events of problems: one for each change, within bounds. A problem that
// a bound refuses is recorded later, if it still exists. It is not safe for concurrent
// use.
type Notices struct {
	record func(about corev1.ObjectReference, kind, reason, action, note string)

	written map[noticeKey]writtenNotice
	began   time.Time      // of the current period of noteEvery
	used    map[string]int // Events within it, by namespace
	all     int
}

type noticeKey struct {
	uid    types.UID
	reason string
}

type writtenNotice struct {
	note string
	at   time.Time
	wait time.Duration // until another text gets an Event
}

// NewNotices returns a Notices that calls record, such as Recorder.EventOnce.
func NewNotices(record func(about corev1.ObjectReference, kind, reason, action, note string)) *Notices {
	return &Notices{record: record, written: map[noticeKey]writtenNotice{}, used: map[string]int{}}
}

// interval is the time between two updates.
const interval = 5 * time.Second

// Run calls Update with the result of list every interval, until ctx is done. A new leader
// therefore records the problems that began before it led.
func (n *Notices) Run(ctx context.Context, list func() []Notice) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			n.Update(now, list())
		}
	}
}

// Update records an Event for each problem that is new or has another text, within the
// bounds. list has all problems that exist now. A problem that ended and comes back with
// the same text gets an Event only after noteAgain.
func (n *Notices) Update(now time.Time, list []Notice) {
	if now.Sub(n.began) >= noteEvery {
		n.began, n.all = now, 0
		clear(n.used)
	}
	for key, w := range n.written {
		if now.Sub(w.at) >= noteAgain {
			delete(n.written, key)
		}
	}
	for i := range list {
		x := &list[i]
		key := noticeKey{x.About.UID, x.Reason}
		last, known := n.written[key]
		if known && (last.note == x.Note || now.Sub(last.at) < last.wait) {
			continue
		}
		if n.all >= notesInAll || n.used[x.About.Namespace] >= notesPerNamespace || !known && len(n.written) >= maxNotes {
			continue
		}
		n.all++
		n.used[x.About.Namespace]++
		n.written[key] = writtenNotice{x.Note, now, max(noteEvery, min(2*last.wait, noteAgain))}
		n.record(x.About, corev1.EventTypeWarning, x.Reason, cmp.Or(x.Action, "Evaluate"), x.Note)
	}
}
