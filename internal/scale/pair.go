// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"math"

	"github.com/gpupilot/gpupilot/internal/scale/facts"
)

// Pair binds a workload to another one, such as prefill to decode. The zero Pair binds it to
// none.
type Pair struct {
	With string // name of the partner, for sentences
	// PerPartner is the least number of replicas for each that the partner wants by its own
	// signals. Lower rounds down, but not to none: of the two partners one rounds up and one
	// down, so that rounding makes neither raise the other for ever.
	PerPartner float64
	Lower      bool
}

// least returns the least replicas beside those of the partner.
func (p *Pair) least(partner float64) int32 {
	x := p.PerPartner * partner
	if p.Lower && x > 0 {
		x = max(1, math.Floor(x+1e-9))
	}
	return facts.Replicas(x)
}

// pair keeps want in the ratio to what the partner wants: it raises what is too low, and never
// lowers. While that is not known, nothing is removed.
func (e *engine) pair(want int32) ruling {
	p, x, cur := &e.p.Pair, e.o.Partner, e.o.Replicas
	switch {
	case p.With == "":
	case !x.fresh(e.now, e.p.missingAfter()):
		if want < cur {
			return ruling{RulePair, cur, facts.PairUnknown(p.With)}
		}
	default:
		if least := p.least(x.Value); least > want {
			return ruling{RulePair, least, facts.Pair{With: p.With, Wants: x.Value, ForEachOfIts: p.PerPartner}}
		}
	}
	return ruling{}
}
