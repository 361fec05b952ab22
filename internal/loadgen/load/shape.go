// SPDX-License-Identifier: Apache-2.0

package load

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Shape is a duty over time: a value of 0 to 1 for each moment since the start. It is data, so that it travels to the
// process that loads the GPU.
type Shape struct {
	Form   Form          `json:"form"`
	Values []float64     `json:"values"`         // by form
	Every  time.Duration `json:"every"`          // by form
	High   time.Duration `json:"high,omitempty"` // Burst: how long the duty is high
}

// Form is the form of a shape.
type Form string

// The forms of a shape. Ramp and Steps keep their last value; the others repeat.
const (
	Constant Form = "constant" // Values[0]
	Ramp     Form = "ramp"     // from Values[0] to Values[1] within Every
	Steps    Form = "steps"    // each of Values for Every
	Sine     Form = "sine"     // between Values[0] and Values[1], one period in Every, starting at Values[0]
	Burst    Form = "burst"    // Values[0] for High, then Values[1] for the rest of Every
	Replay   Form = "replay"   // each of Values for Every
)

// At returns the duty at a time since the start. It is pure.
func (s Shape) At(t time.Duration) float64 {
	if len(s.Values) == 0 {
		return 0
	}
	first, last := s.Values[0], s.Values[len(s.Values)-1]
	if s.Every <= 0 {
		return first
	}
	part := float64(t) / float64(s.Every)
	switch s.Form {
	case Ramp:
		return first + (last-first)*min(1, max(0, part))
	case Steps:
		return s.Values[min(len(s.Values)-1, max(0, int(part)))]
	case Sine:
		return first + (last-first)*(1-math.Cos(2*math.Pi*part))/2
	case Burst:
		if t%s.Every < s.High {
			return first
		}
		return last
	case Replay:
		return s.Values[max(0, int(part))%len(s.Values)]
	}
	return first
}

// samples is how many moments Mean looks at.
const samples = 8

// Mean returns the mean duty between two times since the start.
func (s Shape) Mean(from, to time.Duration) float64 {
	sum := 0.0
	for i := range samples {
		sum += s.At(from + time.Duration((float64(i)+0.5)/samples*float64(to-from)))
	}
	return sum / samples
}

// Length is how long the shape takes once; 0 for a constant.
func (s Shape) Length() time.Duration {
	switch s.Form {
	case Steps, Replay:
		return s.Every * time.Duration(len(s.Values))
	case Constant:
		return 0
	}
	return s.Every
}

// Full is the shape without a flag.
func Full() Shape { return Shape{Form: Constant, Values: []float64{1}} }

// ParseShape reads the value of a shape's flag: constant 0.6, ramp 0:1:10s, steps 0,0.5,1:5s, sine 0.2:0.8:30s, burst
// 1:2s:8s or 1:2s:8s:0.1. ReplayOf makes a replay.
func ParseShape(form Form, text string) (Shape, error) {
	s, err := parseShape(form, strings.Split(strings.TrimSpace(text), ":"))
	if err == nil {
		err = s.Validate()
	}
	if err != nil {
		return Shape{}, fmt.Errorf("%s %q: %w", form, text, err)
	}
	return s, nil
}

var errForm = errors.New("want " + `constant 0.6, ramp 0:1:10s, steps 0,0.5,1:5s, sine 0.2:0.8:30s or burst 1:2s:8s`)

func parseShape(form Form, parts []string) (s Shape, err error) {
	s.Form = form
	switch {
	case form == Constant && len(parts) == 1:
		s.Values, err = duties(parts...)
	case (form == Ramp || form == Sine) && len(parts) == 3:
		if s.Values, err = duties(parts[:2]...); err == nil {
			s.Every, err = Duration(parts[2])
		}
	case form == Steps && len(parts) == 2:
		if s.Values, err = duties(strings.Split(parts[0], ",")...); err == nil {
			s.Every, err = Duration(parts[1])
		}
	case form == Steps && len(parts) == 1: // dcgmproftester's report interval is a step's length
		s.Every = time.Second
		s.Values, err = duties(strings.Split(parts[0], ",")...)
	case form == Burst && (len(parts) == 3 || len(parts) == 4):
		return parseBurst(parts)
	default:
		err = errForm
	}
	return s, err
}

// parseBurst reads HIGH:ON:OFF[:LOW].
func parseBurst(parts []string) (Shape, error) {
	low := "0"
	if len(parts) == 4 {
		low = parts[3]
	}
	values, err := duties(parts[0], low)
	if err != nil {
		return Shape{}, err
	}
	on, err := Duration(parts[1])
	if err != nil {
		return Shape{}, err
	}
	off, err := Duration(parts[2])
	return Shape{Form: Burst, Values: values, Every: on + off, High: on}, err
}

func duties(words ...string) ([]float64, error) {
	var out []float64
	for _, w := range words {
		v, err := strconv.ParseFloat(strings.TrimSpace(w), 64)
		if err != nil {
			return nil, fmt.Errorf("no number: %q", w)
		}
		out = append(out, v)
	}
	return out, nil
}

// maxDuration is the longest duration: a year. Longer ones overflow when they are added up.
const maxDuration = 365 * 24 * time.Hour

// Duration reads a duration such as 10s, or a number of seconds as dcgmproftester has them.
func Duration(text string) (time.Duration, error) {
	text = strings.TrimSpace(text)
	d, err := time.ParseDuration(text)
	if seconds, numErr := strconv.ParseFloat(text, 64); numErr == nil {
		if !(seconds <= maxDuration.Seconds()) {
			return 0, fmt.Errorf("duration %q: want at most a year", text)
		}
		d, err = time.Duration(seconds*float64(time.Second)), nil
	}
	if err != nil || d < 0 || d > maxDuration {
		return 0, fmt.Errorf("duration %q: want 10s, or seconds", text)
	}
	return d, nil
}

// maxValues is how many values a shape may have: a day of seconds.
const maxValues = 86400

// Validate refuses a shape that has no duty, one outside of 0 to 1, or no time.
func (s Shape) Validate() error {
	if len(s.Values) == 0 || len(s.Values) > maxValues {
		return fmt.Errorf("%d values: want 1 to %d", len(s.Values), maxValues)
	}
	for _, v := range s.Values {
		if !(v >= 0 && v <= 1) {
			return fmt.Errorf("duty %v: want 0 to 1", v)
		}
	}
	if s.Form != Constant && s.Every < minEvery {
		return fmt.Errorf("%v is too short: want at least %v", s.Every, minEvery)
	}
	if s.Length() > maxDuration {
		return fmt.Errorf("it takes %v: want at most a year", s.Length())
	}
	return nil
}

// minEvery is the shortest time of a shape: the length of a slice of the load.
const minEvery = slice

// ReplayOf makes a shape of counts, which begin at seconds that increase: the highest rate is the duty 1.
func ReplayOf(seconds, counts []float64) (Shape, error) {
	if len(seconds) < 2 || len(seconds) != len(counts) {
		return Shape{}, fmt.Errorf("replay: %d counts: want at least 2", len(counts))
	}
	every := (seconds[len(seconds)-1] - seconds[0]) / float64(len(seconds)-1)
	if !(every > 0 && every <= maxDuration.Seconds()) {
		return Shape{}, fmt.Errorf("replay: the counts are %v s apart", every)
	}
	s := Shape{Form: Replay, Values: make([]float64, len(counts)), Every: time.Duration(every * float64(time.Second))}
	highest := 0.0
	for i, n := range counts {
		width := every // of the last one
		if i+1 < len(seconds) {
			width = seconds[i+1] - seconds[i]
		}
		if !(width > 0) || !(n >= 0) {
			return Shape{}, fmt.Errorf("replay: row %d: %v in %v s", i+1, n, width)
		}
		s.Values[i] = n / width
		highest = max(highest, s.Values[i])
	}
	for i := range s.Values {
		if highest > 0 {
			s.Values[i] /= highest
		}
	}
	return s, s.Validate()
}
