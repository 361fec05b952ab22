// SPDX-License-Identifier: Apache-2.0

package contender

import "math"

// rayPeers is the autoscaler of Ray Serve with its defaults (Ray 2.51,
// python/ray/serve/config.py). Replicas push their ongoing and queued requests.
func rayPeers() []named {
	return []named{{name: "ray-serve", period: 1, pushed: true, rule: func(*Replay) rule { return &rayServe{} }}}
}

// Ray Serve's defaults.
const (
	rayTarget    = 2   // ongoing requests per replica
	rayPush      = 10  // seconds between the reports of a replica
	rayLookBack  = 30  // seconds of the mean
	rayUpDelay   = 30  // seconds that a higher target must persist
	rayDownDelay = 600 // seconds that a lower one must
)

// rayServe scales by the mean of the requests in replicas and queues.
type rayServe struct {
	pushed             []weighted // totals
	upSince, downSince int        // first second of a persisting target; 0: none
}

func (r *rayServe) decide(f *fleet) int {
	if f.now%rayPush == 0 {
		r.pushed = append(since(r.pushed, f.now-rayLookBack), weighted{second: f.now, value: f.running + f.waiting})
	}
	if len(r.pushed) == 0 {
		return f.replicas
	}
	total := 0.0
	for _, x := range r.pushed {
		total += x.value / float64(len(r.pushed))
	}
	wanted := int(math.Ceil(total / rayTarget))
	switch {
	case wanted > f.replicas:
		r.downSince = 0
		if r.upSince == 0 {
			r.upSince = f.now
		}
		if f.now-r.upSince >= rayUpDelay {
			r.upSince = 0
			return wanted
		}
	case wanted < f.replicas:
		r.upSince = 0
		if r.downSince == 0 {
			r.downSince = f.now
		}
		if f.now-r.downSince >= rayDownDelay {
			r.downSince = 0
			return wanted
		}
	default:
		r.upSince, r.downSince = 0, 0
	}
	return f.replicas
}
