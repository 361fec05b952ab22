// SPDX-License-Identifier: Apache-2.0

package simnode

import (
	"math"
	"time"
)

// Model is that of replicas that serve requests on one GPU each (or on several;
// then Capacity is the replica's). It is a fluid queue: requests beyond the
// capacity of the serving replicas wait, and keep them at 100 % until the queue
// is empty. More replicas therefore reduce the load. It is not safe for
// concurrent use.
type Model struct {
	// Capacity is the requests per second that one replica completes at 100 %
	// utilisation. It must be positive.
	Capacity float64
	// Concurrency is how many requests a replica has in flight at 100 %
	// utilisation, as vLLM's max_num_seqs.
	Concurrency float64
	// QueueLimit is the limit of waiting requests; further ones are rejected.
	// 0: no limit.
	QueueLimit float64

	last  time.Time
	queue float64
}

// Load is the result of a step of the model.
type Load struct {
	Utilization float64 // of each serving replica's GPUs, 0 to 100; 0 without serving replicas
	Queue       float64 // requests waiting, in all
	Running     float64 // requests in flight, per serving replica
	Waiting     float64 // requests waiting, per serving replica; 0 without serving replicas
	Served      float64 // requests completed in this step, in all
	Rejected    float64 // requests rejected in this step, in all
}

// Step advances to now, with offered requests per second since the last step,
// spread over the serving replicas. The first step has no length.
func (w *Model) Step(now time.Time, offered float64, serving int) Load {
	dt := 0.0
	if !w.last.IsZero() {
		dt = max(0, now.Sub(w.last).Seconds())
	}
	w.last = now
	var l Load
	work := w.queue + offered*dt
	room := float64(serving) * w.Capacity * dt
	l.Served = min(work, room)
	w.queue = work - l.Served
	if w.QueueLimit > 0 && w.queue > w.QueueLimit {
		l.Rejected = w.queue - w.QueueLimit
		w.queue = w.QueueLimit
	}
	l.Queue = w.queue
	if serving == 0 {
		return l
	}
	u := offered / (float64(serving) * w.Capacity)
	if room > 0 {
		u = l.Served / room
	}
	u = min(1, u)
	l.Utilization = 100 * u
	l.Running = u * w.Concurrency
	l.Waiting = w.queue / float64(serving)
	return l
}

// Need returns the replicas that the offered load (requests per second) needs
// at a target utilisation (percent), at least 1.
func (w *Model) Need(offered, target float64) int {
	// A load that fills n replicas exactly needs n, despite rounding.
	n := math.Ceil(offered/(w.Capacity*target/100) - 1e-9)
	return int(max(1, n))
}
