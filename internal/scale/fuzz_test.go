// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"encoding/binary"
	"math"
	"reflect"
	"testing"
	"time"
)

// decode makes a policy and an observation of any bytes: hostile values, ages
// and phases included.
func decode(data []byte) (Policy, Observation, bool) {
	next := func() float64 {
		if len(data) < 8 {
			return 0
		}
		x := math.Float64frombits(binary.LittleEndian.Uint64(data))
		data = data[8:]
		return x
	}
	small := func() int32 {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int32(b)
	}
	p := utilPolicy()
	p.Min, p.Max = 1+small()%10, 10+small()%50
	p.Down.Window = time.Duration(small()) * time.Second
	p.Startup = time.Duration(small()) * time.Second
	p.Missing, p.MissingFloor = MissingMode(small()%3), small()
	o := Observation{Replicas: small() % 64}
	for range small() % 32 {
		age := time.Duration(small()-100) * time.Second
		o.Pods = append(o.Pods, Replica{
			Phase: Phase(small() % 4), Since: t0.Add(-age),
			Readings: []Reading{{Value: next(), At: t0.Add(-time.Duration(small()-8) * time.Second), OK: small()%8 != 0}},
		})
	}
	return p, o, len(o.Pods) > 0
}

func FuzzDecide(f *testing.F) {
	f.Add([]byte{1, 20, 30, 40, 0, 0, 4, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0x59, 0x40, 2, 1})
	f.Fuzz(func(t *testing.T, data []byte) {
		p, o, ok := decode(data)
		if !ok {
			return
		}
		d, s := Decide(p, o, State{}, t0)
		if d.Replicas < p.Min || d.Replicas > p.Max {
			t.Errorf("%d replicas outside [%d, %d]", d.Replicas, p.Min, p.Max)
		}
		if again, s2 := Decide(p, o, State{}, t0); !reflect.DeepEqual(d.Steps, again.Steps) || !reflect.DeepEqual(s, s2) {
			t.Error("a replay gives another decision")
		}
		later := t0.Add(-time.Hour) // the clock goes back
		if d, _ := Decide(p, o, s, later); d.Replicas < p.Min || d.Replicas > p.Max {
			t.Errorf("with the clock gone back: %d replicas outside [%d, %d]", d.Replicas, p.Min, p.Max)
		}
		missingNeverLowers(t, p, o)
		moreNeverYieldsFewer(t, p, o)
	})
}

func missingNeverLowers(t *testing.T, p Policy, o Observation) {
	t.Helper()
	blind := o
	blind.Pods = append([]Replica(nil), o.Pods...)
	for i := range blind.Pods {
		blind.Pods[i].Readings = nil
	}
	if d, _ := Decide(p, blind, State{}, t0); d.Replicas < min(o.Replicas, p.Max) {
		t.Errorf("without data: %d replicas, below the current %d", d.Replicas, o.Replicas)
	}
}

func moreNeverYieldsFewer(t *testing.T, p Policy, o Observation) {
	t.Helper()
	more := o
	more.Pods = append([]Replica(nil), o.Pods...)
	for i := range more.Pods {
		r := o.Pods[i].reading(0)
		if r.OK && r.Value >= 0 && r.Value < 1e6 {
			r.Value = r.Value*1.3 + 1
			more.Pods[i].Readings = []Reading{r}
		}
	}
	d, _ := Decide(p, o, State{}, t0)
	if m, _ := Decide(p, more, State{}, t0); m.Replicas < d.Replicas {
		t.Errorf("more demand yields %d replicas, less yields %d", m.Replicas, d.Replicas)
	}
}
