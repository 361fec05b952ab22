// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/gpu"
)

// The readings of a replica that others have replaced are gone with it, and what it carried
// shows in the others' next ones only. Replicas that come and go each few seconds, and agents
// that answer seldom, take none of what a steady load needs.
func TestSteadyLoadKeepsItsReplicas(t *testing.T) {
	for seed := range uint64(*worlds * 4) {
		rnd := rand.New(rand.NewPCG(seed, 39))
		needed := 2 + rnd.IntN(20)
		load := (float64(needed) - 0.05 - 0.5*rnd.Float64()) * 0.6 // in replicas at 100 %
		life := time.Duration(float64(needed) * (2 + 20*rnd.Float64()) * float64(time.Second))
		starts := time.Duration(rnd.IntN(3000)) * time.Millisecond
		outage := 0.2 * rnd.Float64() * rnd.Float64() // of an agent, each second
		p := Policy{
			Min: 1, Max: 100, Up: Rules{Tolerance: AutoTolerance}, Down: Rules{Tolerance: AutoTolerance, Window: time.Duration(3+rnd.IntN(20)) * time.Second},
			Signals: []Signal{{Name: "Utilization", Unit: "%", Target: 60, Ceiling: 100, Aggregate: gpu.Mean}},
		}
		type replica struct {
			name            string
			created, silent time.Time
			serving         time.Time
			reading         Reading
		}
		var pods []*replica
		replicas, made, s := int32(needed), 0, State{}
		var story []string
		for now := t0; now.Before(t0.Add(4 * time.Minute)); now = now.Add(100 * time.Millisecond) {
			pods = slices.DeleteFunc(pods, func(r *replica) bool {
				seen := r.serving.IsZero() || now.Sub(r.serving) > time.Second // by a decision
				return seen && now.After(t0.Add(time.Minute)) && rnd.Float64() < 0.1/life.Seconds()
			})
			for len(pods) < int(replicas) {
				made++
				pods = append(pods, &replica{name: fmt.Sprint("pod-", made), created: now})
			}
			serving := 0
			for _, r := range pods {
				if r.serving.IsZero() && now.Sub(r.created) >= starts {
					r.serving = now
				}
				if !r.serving.IsZero() {
					serving++
				}
			}
			for i, r := range pods {
				if rnd.Float64() < outage/10 {
					r.silent = now.Add(time.Duration(rnd.IntN(30)) * time.Second)
				}
				if (now.UnixMilli()/100+int64(i))%10 != 0 || now.Before(r.silent) {
					continue
				}
				used := 0.0
				if !r.serving.IsZero() {
					used = min(100, 100*load/float64(serving))
				}
				r.reading = Reading{Value: used, At: now, OK: true}
			}
			if now.UnixMilli()%1000 != 0 {
				continue
			}
			o := Observation{Replicas: replicas}
			for _, r := range pods {
				x := Replica{Name: r.name, Phase: Starting, Since: r.created, Readings: []Reading{r.reading}}
				if !r.serving.IsZero() {
					x.Phase, x.Since = Serving, r.serving.Truncate(time.Second) // as Kubernetes has it
				}
				o.Pods = append(o.Pods, x)
			}
			var d Decision
			d, s = Decide(p, o, s, now)
			if d.Replicas != replicas {
				story = append(story, fmt.Sprintf("%v %d→%d: %s", now.Sub(t0), replicas, d.Replicas, d.Sentence()))
			}
			if least := int32(math.Ceil(load / 0.6)); d.Replicas < least {
				t.Errorf("seed %d: %d serve, of a life of %v, an agent ends %.2f/s: %v", seed, needed, life, outage, story)
				break
			}
			replicas = d.Replicas
		}
	}
}
