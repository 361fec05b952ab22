// SPDX-License-Identifier: Apache-2.0

package promise

import (
	"encoding/json"
	"fmt"
	"math"
)

// Curve counts the requests that ended, and those of them that missed a limit, by how
// busy the replicas were. Older requests weigh less.
type Curve struct {
	Ended, Missed [classes]float32
}

// Shares is the share of the requests that misses a limit, by class.
type Shares [classes]float32

const (
	// classes is the number of classes of the busy share of a replica: eight per octave,
	// from leastBusy up to 4.
	classes   = 48
	leastBusy = 1.0 / 16
	// curveMemory is the time constant of the counts, in seconds: the day whose misses are fed back.
	curveMemory = 24 * 3600
	// steepness is that of the assumed curve, a logistic one over the logarithm of the busy share. At three quarters of
	// the knee, one request in a hundred misses. firstShare and atOnceShare were tried on this one.
	steepness = 16
	// assumed is for how many requests of each class the assumed curve counts.
	assumed = 20
)

// classOf is the class of a busy share: the exponent of a float32, and three bits of its
// fraction.
func classOf(busy float32) int {
	const first = 0x3d800000 >> 20 // of 1/16
	return min(max(int(math.Float32bits(busy)>>20)-first, 0), classes-1)
}

// middle is the busy share in the middle of a class.
func middle(class int) float64 {
	return math.Ldexp(leastBusy, class/8) * (1 + (float64(class%8)+0.5)/8)
}

// next is the curve after a step of some seconds.
func (c Curve) next(busy, ended, missed, seconds float64) Curve {
	keep := float32(math.Exp(-seconds / curveMemory))
	for i := range c.Ended {
		c.Ended[i] *= keep
		c.Missed[i] *= keep
	}
	i := classOf(float32(busy))
	c.Ended[i] += float32(ended)
	c.Missed[i] += float32(min(missed, ended))
	return c
}

// of is the share of the requests that missed a limit on replicas that busy.
func (c *Curve) of(busy float32) float64 {
	i := classOf(busy)
	return float64(c.Missed[i] / max(c.Ended[i], 1))
}

// Shares returns the shares of missed requests. None is lower than that of a class before. Where little is known, half
// of the requests are assumed to miss when replicas are as busy as knee.
func (c *Curve) Shares(knee float64) (out Shares) {
	type block struct {
		missed, ended float64
		classes       int
	}
	var blocks [classes]block
	n := 0
	for i := range classes {
		share := assumedShare(middle(i), knee)
		blocks[n] = block{float64(c.Missed[i]) + share*assumed, float64(c.Ended[i]) + assumed, 1}
		n++
		// Pool adjacent violators: neighbours that fall become one.
		for ; n > 1 && blocks[n-2].missed*blocks[n-1].ended > blocks[n-1].missed*blocks[n-2].ended; n-- {
			last := blocks[n-1]
			b := &blocks[n-2]
			b.missed, b.ended, b.classes = b.missed+last.missed, b.ended+last.ended, b.classes+last.classes
		}
	}
	i := 0
	for _, b := range blocks[:n] {
		for range b.classes {
			out[i] = float32(min(b.missed/b.ended, 1))
			i++
		}
	}
	return out
}

// calmClasses are those of replicas that are busy to less than 3/16.
const calmClasses = 12

// Calm returns the requests that ended while replicas were hardly busy, and those of them
// that missed a limit.
func (c *Curve) Calm() (ended, missed float64) {
	for i := range calmClasses {
		ended, missed = ended+float64(c.Ended[i]), missed+float64(c.Missed[i])
	}
	return ended, missed
}

// assumedShare is the share of the requests that the assumed curve misses at a busy share.
func assumedShare(busy, knee float64) float64 { return 1 / (1 + math.Pow(busy/knee, -steepness)) }

// fullest is the busy share at which the assumed curve misses a share of the requests.
func fullest(share, knee float64) float64 {
	share = min(max(share, least), 0.5)
	return knee * math.Pow(share/(1-share), 1.0/steepness)
}

// fullest is the highest busy share up to mostBusy at which a share of the requests misses a
// limit at most; 0: there is none.
func (s *Shares) fullest(share float64) float64 {
	busy := 0.0
	for i, missed := range s {
		if float64(missed) > share || middle(i) > mostBusy {
			break
		}
		busy = middle(i)
	}
	return busy
}

// curveJSON is the form of a curve in JSON: from the first class with a request on, whole
// requests that ended and tenths of requests that missed.
type curveJSON struct {
	First  int     `json:"first"`
	Ended  []int64 `json:"ended"`
	Missed []int64 `json:"missed"`
}

// MarshalJSON leaves out what is less than half a request.
func (c Curve) MarshalJSON() ([]byte, error) {
	var out curveJSON
	for i := range c.Ended {
		ended, missed := int64(math.Round(float64(c.Ended[i]))), int64(math.Round(10*float64(c.Missed[i])))
		if len(out.Ended) == 0 {
			out.First = i
		}
		if len(out.Ended) > 0 || ended > 0 {
			out.Ended, out.Missed = append(out.Ended, ended), append(out.Missed, missed)
		}
	}
	n := len(out.Ended)
	for n > 0 && out.Ended[n-1] == 0 {
		n--
	}
	out.Ended, out.Missed = out.Ended[:n], out.Missed[:n]
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (c *Curve) UnmarshalJSON(b []byte) error {
	var in curveJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	if n := len(in.Ended); in.First < 0 || n != len(in.Missed) || in.First > classes-n {
		return fmt.Errorf("a curve of %d and %d classes from %d on: want as many of both, and %d at most", n, len(in.Missed), in.First, classes)
	}
	*c = Curve{}
	for i := range in.Ended {
		ended, missed := min(max(0, float64(in.Ended[i])), most), max(0, float64(in.Missed[i]))/10
		c.Ended[in.First+i], c.Missed[in.First+i] = float32(ended), float32(min(missed, ended))
	}
	return nil
}
