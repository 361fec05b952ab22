// SPDX-License-Identifier: Apache-2.0

package arena

import "math"

// mersenne is the generator of Python's random.Random(seed): MT19937 of Matsumoto and
// Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998), seeded by their init_by_array. So the
// loads are the published ones, request by request.
type mersenne struct {
	state [mersenneSize]uint32
	next  int
}

const (
	mersenneSize  = 624
	mersenneShift = 397
)

// newMersenne returns the generator for a seed below 2³².
func newMersenne(seed uint32) *mersenne {
	m := &mersenne{next: mersenneSize}
	m.state[0] = 19650218
	for i := 1; i < mersenneSize; i++ {
		m.state[i] = 1812433253*(m.state[i-1]^m.state[i-1]>>30) + uint32(i)
	}
	// init_by_array with a key of one word.
	i := 1
	advance := func() {
		if i++; i == mersenneSize {
			m.state[0], i = m.state[mersenneSize-1], 1
		}
	}
	for range mersenneSize {
		m.state[i] = (m.state[i] ^ (m.state[i-1]^m.state[i-1]>>30)*1664525) + seed
		advance()
	}
	for range mersenneSize - 1 {
		m.state[i] = (m.state[i] ^ (m.state[i-1]^m.state[i-1]>>30)*1566083941) - uint32(i)
		advance()
	}
	m.state[0] = 1 << 31
	return m
}

func (m *mersenne) uint32() uint32 {
	if m.next == mersenneSize {
		m.twist()
	}
	y := m.state[m.next]
	m.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

func (m *mersenne) twist() {
	for i := range m.state {
		y := m.state[i]&(1<<31) | m.state[(i+1)%mersenneSize]&(1<<31-1)
		x := m.state[(i+mersenneShift)%mersenneSize] ^ y>>1
		if y&1 == 1 {
			x ^= 0x9908b0df
		}
		m.state[i] = x
	}
	m.next = 0
}

// float64 is Python's random(): 53 bits in [0, 1).
func (m *mersenne) float64() float64 {
	a, b := m.uint32()>>5, m.uint32()>>6
	return (float64(a)*(1<<26) + float64(b)) / (1 << 53)
}

// normal is Python's normalvariate(): the ratio of uniforms of Kinderman and Monahan, ACM
// TOMS 3 (1977).
func (m *mersenne) normal(mean, sigma float64) float64 {
	magic := 4 * math.Exp(-0.5) / math.Sqrt2
	for {
		u, v := m.float64(), 1-m.float64()
		z := magic * (u - 0.5) / v
		if z*z/4 <= -math.Log(v) {
			return mean + z*sigma
		}
	}
}

// poisson draws by Knuth's method, as the published loads do.
func (m *mersenne) poisson(mean float64) (n int) {
	if mean <= 0 {
		return 0
	}
	for p, least := m.float64(), math.Exp(-mean); p > least; n++ {
		p *= m.float64()
	}
	return n
}

// tokens draws a whole number of at least 1 from a log-normal distribution.
func (m *mersenne) tokens(s size) float64 {
	return max(1, math.RoundToEven(math.Exp(m.normal(math.Log(s.median), s.sigma))))
}
