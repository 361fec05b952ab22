// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// world is a load and how a source collects it.
type world struct {
	r        *rand.Rand
	duty     func(t float64) float64 // seconds since the start
	length   float64
	interval float64 // of the source's collections
	window   float64 // of which a collection is the mean
	delay    float64 // until the value is shown, at most
	noise    float64
}

// newWorld is a random load that changes: levels, a sine or a staircase.
func newWorld(seed uint64, interval float64) *world {
	r := rand.New(rand.NewPCG(seed, 7))
	w := &world{r: r, interval: interval, window: min(interval, 0.05+r.Float64()*interval*1.2), delay: 1.2, noise: 0.01}
	w.length = max(90, 20*interval)
	switch r.IntN(3) {
	case 0: // levels of random lengths
		var ends, values []float64
		for end, v := 0.0, r.Float64(); end < w.length; {
			end += (0.7 + r.Float64()) * max(10, 2*interval)
			for {
				next := r.Float64()
				if math.Abs(next-v) > 0.4 {
					v = next
					break
				}
				v = next
			}
			ends, values = append(ends, end), append(values, v)
		}
		w.duty = func(t float64) float64 {
			for i, end := range ends {
				if t < end {
					return values[i]
				}
			}
			return 0
		}
	case 1:
		period := max(40, 5*interval) * (1 + r.Float64())
		w.duty = func(t float64) float64 { return 0.5 - 0.45*math.Cos(2*math.Pi*t/period) }
	case 2:
		every := max(10, 3*interval) * (1 + 0.3*r.Float64())
		w.duty = func(t float64) float64 { return math.Mod(math.Floor(t/every)*0.4, 1.2)/1.2 + 0.1 }
	}
	return w
}

// generated are steps of one second, whose lengths jitter.
func (w *world) generated() (out []Generated) {
	for t := 0.0; t < w.length; {
		end := t + 1 + 0.04*(w.r.Float64()-0.5)
		out = append(out, Generated{at(t), at(end), w.mean(t, end), 0.002})
		t = end
	}
	return out
}

func at(t float64) time.Time { return epoch.Add(time.Duration(t * 1e9)) }

// mean is the mean duty; the GPU is idle before and after.
func (w *world) mean(from, to float64) float64 {
	sum := 0.0
	for i := range 20 {
		if t := from + (to-from)*(float64(i)+0.5)/20; t >= 0 && t < w.length {
			sum += w.duty(t)
		}
	}
	return sum / 20
}

// samples are the answers to a query each second. lie changes what is collected at a time.
func (w *world) samples(lag float64, lie func(t, v float64) float64) (out []Sample) {
	type shown struct{ from, value float64 }
	var collected []shown
	for t := -2*w.interval - 5; t < w.length+5; {
		v := w.mean(t-w.window-lag, t-lag) * (1 + w.noise*w.r.NormFloat64())
		collected = append(collected, shown{t + w.delay*w.r.Float64(), lie(t, min(1, max(0, v)))})
		t += w.interval * (1 + 0.02*w.r.NormFloat64())
	}
	i := 0
	for t := -3.0; t < w.length+2; t += 1 + 0.05*w.r.NormFloat64() {
		for i+1 < len(collected) && collected[i+1].from <= t {
			i++
		}
		out = append(out, Sample{at(t), collected[i].value})
	}
	return out
}

func honest(_, v float64) float64 { return v }

// lies are sources that are wrong, with random parameters.
var lies = []struct {
	name string
	want Finding
	make func(w *world, in *Input)
}{
	{"frozen from the start", Frozen, func(w *world, in *Input) {
		v := w.r.Float64()
		in.Samples = w.samples(0, func(_, _ float64) float64 { return v })
	}},
	{"zero", Frozen, func(w *world, in *Input) { in.Samples = w.samples(0, func(_, _ float64) float64 { return 0 }) }},
	{"frozen later", Frozen, func(w *world, in *Input) {
		since, kept := w.length*(0.25+0.2*w.r.Float64()), math.NaN()
		in.Samples = w.samples(0, func(t, v float64) float64 {
			if t >= since && math.IsNaN(kept) {
				kept = v
			}
			if t >= since {
				return kept
			}
			return v
		})
	}},
	{"lagging", Lagging, func(w *world, in *Input) {
		lag := 3*w.interval + 5 + 10*w.r.Float64()
		in.Samples = w.samples(lag, honest)
	}},
	{"too high", Scaled, func(w *world, in *Input) {
		k := 1.3 + 6*w.r.Float64()
		in.Samples = w.samples(0, func(_, v float64) float64 { return k * v })
	}},
	{"percent", Scaled, func(w *world, in *Input) {
		in.Samples = w.samples(0, func(_, v float64) float64 { return 100 * v })
	}},
	{"too low", Scaled, func(w *world, in *Input) {
		k := 0.05 + 0.65*w.r.Float64()
		in.Samples = w.samples(0, func(_, v float64) float64 { return k * v })
	}},
	{"over 100 %", Over, func(w *world, in *Input) {
		d := 0.4 + 0.5*w.r.Float64()
		in.Samples = w.samples(0, func(_, v float64) float64 { return v + d })
	}},
	{"another GPU's label", OtherGPU, func(w *world, in *Input) {
		in.Others = map[string][]Sample{"GPU-1": w.samples(0, honest), "GPU-2": w.samples(0, func(_, _ float64) float64 { return 0.3 })}
		in.Samples = w.samples(0, func(_, _ float64) float64 { return 0.01 * w.r.Float64() })
	}},
	{"missing", Missing, func(w *world, in *Input) {
		in.Samples = w.samples(0, func(_, _ float64) float64 { return math.NaN() })
	}},
	{"missing for a time", Missing, func(w *world, in *Input) {
		from := w.length * (0.2 + 0.2*w.r.Float64())
		in.Samples = w.samples(0, func(t, v float64) float64 {
			if t > from && t < from+0.4*w.length {
				return math.NaN()
			}
			return v
		})
	}},
	{"half of it", Off, func(w *world, in *Input) { // one of two datapaths
		most := 0.3 + 0.2*w.r.Float64()
		in.Samples = w.samples(0, func(_, v float64) float64 { return min(v, most) * (1 + 0.01*w.r.NormFloat64()) })
	}},
	{"noise", Off, func(w *world, in *Input) {
		in.Samples = w.samples(0, func(_, _ float64) float64 { return w.r.Float64() })
	}},
}

const seeds = 8

var intervals = []float64{1, 15, 30}

func TestLiesAreNamed(t *testing.T) {
	for _, lie := range lies {
		wrong, total := 0, 0
		for _, interval := range intervals {
			for seed := range uint64(seeds) {
				w := newWorld(seed, interval)
				in := Input{Generated: w.generated(), IsRatio: true}
				lie.make(w, &in)
				total++
				if v := Judge(in); v.Finding != lie.want {
					if wrong++; wrong < 4 {
						t.Errorf("%s, interval %v, seed %d: %+v, want %s", lie.name, interval, seed, v, lie.want)
					}
				}
			}
		}
		t.Logf("%s: %d of %d named right", lie.name, total-wrong, total)
	}
}

func TestHonestSourcesAreTrue(t *testing.T) {
	for _, interval := range intervals {
		exact := 0
		for seed := range uint64(5 * seeds) {
			w := newWorld(seed, interval)
			in := Input{Generated: w.generated(), Samples: w.samples(0, honest), IsRatio: true}
			in.Others = map[string][]Sample{"GPU-9": w.samples(0, func(_, _ float64) float64 { return 0 })}
			v := Judge(in)
			if !v.Finding.IsTrue() {
				t.Errorf("interval %v, seed %d: %+v", interval, seed, v)
			}
			if v.Finding == Exact {
				exact++
			}
		}
		t.Logf("interval %v: %d of %d exact", interval, exact, 20*seeds)
	}
}

// An honest source of a constant load is true; one that shows half of it is off: the load does not tell why.
func TestConstantLoad(t *testing.T) {
	w := newWorld(1, 1)
	w.duty = func(float64) float64 { return 1 }
	f := func(k float64, want Finding) {
		t.Helper()
		v := Judge(Input{Generated: w.generated(), Samples: w.samples(0, func(_, v float64) float64 { return k * v }), IsRatio: true})
		if v.Finding != want {
			t.Errorf("× %v: %+v, want %s", k, v, want)
		}
	}
	w.noise = 0
	f(1, Exact)
	f(0.97, Within)
	f(0.5, Off)
	f(1.4, Over)
}

// A source that reads moments does not see a dip of a second, and one whose load stays where it is has nothing to show.
func TestQuietSourcesAreNotFrozen(t *testing.T) {
	for name, value := range map[string]func(second int) float64{
		"a dip": func(second int) float64 {
			if second == 7 {
				return 0.6
			}
			return 0.97
		},
		"the end of a staircase": func(second int) float64 { return 0.1 + 0.2*float64(min(second/15, 4)) },
	} {
		var in Input
		in.IsRatio = true
		for i := range 180 {
			in.Generated = append(in.Generated, Generated{at(float64(i)), at(float64(i + 1)), value(i), 0.002})
			shown := value(max(0, i-1))
			if shown == 0.6 {
				shown = 0.97
			}
			in.Samples = append(in.Samples, Sample{at(float64(i) + 0.5), shown})
		}
		if v := Judge(in); !v.Finding.IsTrue() {
			t.Errorf("%s: %s", name, v)
		}
	}
}

// A source that is asked too seldom, or for too short a time, is neither praised nor blamed.
func TestTooLittleIsUnmeasured(t *testing.T) {
	w := newWorld(2, 30)
	g := w.generated()
	for name, in := range map[string]Input{
		"no load":    {Samples: w.samples(0, honest)},
		"no answer":  {Generated: g},
		"one answer": {Generated: g, Samples: []Sample{{at(40), 0.5}}},
		"before":     {Generated: g, Samples: []Sample{{at(-40), 0.5}, {at(-30), 0.5}}},
		"20 s":       {Generated: g[:20], Samples: w.samples(0, func(_, _ float64) float64 { return 0 })},
	} {
		in.IsRatio = true
		if v := Judge(in); v.Finding != Unmeasured {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// The lag of an honest source is told.
func TestLagIsMeasured(t *testing.T) {
	for seed := range uint64(10) {
		w := newWorld(3*seed, 1)
		w.delay, w.window = 0, 1
		v := Judge(Input{Generated: w.generated(), Samples: w.samples(0, honest), IsRatio: true})
		if v.Lag == nil || *v.Lag > 1.2 {
			t.Errorf("seed %d: %+v", seed, v)
		}
	}
}

// Whatever a source answers, Judge returns a verdict; and an honest source is never off.
func FuzzJudge(f *testing.F) {
	f.Add(uint64(1), byte(1), []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(uint64(2), byte(15), []byte{0, 0, 0, 0, 0, 0, 0xf8, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xef, 0x7f})
	f.Fuzz(func(t *testing.T, seed uint64, interval byte, raw []byte) {
		w := newWorld(seed, 1+float64(interval%30))
		g := w.generated()
		if v := Judge(Input{Generated: g, Samples: w.samples(0, honest), IsRatio: true}); !v.Finding.IsTrue() {
			t.Errorf("an honest source: %+v", v)
		}
		var hostile []Sample
		var load []Generated
		for i := 0; i+8 <= len(raw) && i < 4096; i += 8 {
			v := math.Float64frombits(binary.LittleEndian.Uint64(raw[i:]))
			hostile = append(hostile, Sample{at(float64(i) + math.Mod(v, 8)), v})
			load = append(load, Generated{at(float64(i)), at(float64(i) + 7 + math.Mod(v, 8)), v, v})
		}
		for _, in := range []Input{
			{Generated: g, Samples: hostile, IsRatio: true},
			{Generated: load, Samples: hostile},
			{Generated: load, Samples: w.samples(0, honest)},
			{Generated: g, Others: map[string][]Sample{"GPU-1": hostile}},
		} {
			if v := Judge(in); v.Finding == "" || v.Scale != nil && math.IsNaN(*v.Scale) {
				t.Errorf("%+v", v)
			}
		}
	})
}
