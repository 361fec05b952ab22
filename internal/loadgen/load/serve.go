// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// hostClock is the host's time.
type hostClock struct{}

func (hostClock) Now() time.Time { return time.Now() }

// Serve does the job that the first line of in describes, and writes its messages to out as JSON lines. The job ends when
// in ends: that the program that started this one has ended, too.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	reader := bufio.NewReader(in)
	line, err := reader.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	var job Job
	if err := json.Unmarshal(line, &job); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // it ends with in, or with the process
		_, _ = reader.ReadByte()
		cancel()
	}()
	encoder := json.NewEncoder(out)
	err = Run(ctx, job, hostClock{}, func(m Message) error { return encoder.Encode(m) })
	var f *Failure
	if errors.As(err, &f) {
		return errors.Join(encoder.Encode(Message{Failure: f}), err)
	}
	return err
}
