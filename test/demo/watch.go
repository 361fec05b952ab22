// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// happening is an Event of one of the two autoscalers.
type happening struct {
	who  string
	text string
}

// watchEvents sends the Events of the autoscalers until ctx ends. It restarts a broken
// watch, and sends each Event once.
func watchEvents(ctx context.Context, c client.WithWatch, out chan<- happening) {
	told := map[string]bool{}
	for ctx.Err() == nil {
		if err := watchOnce(ctx, c, out, told); err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}

func watchOnce(ctx context.Context, c client.WithWatch, out chan<- happening, told map[string]bool) error {
	w, err := c.Watch(ctx, &corev1.EventList{}, client.InNamespace(namespace))
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		event, ok := e.Object.(*corev1.Event)
		if !ok {
			continue
		}
		h, ok := tell(event)
		key := fmt.Sprint(event.InvolvedObject.Kind, h)
		if strings.HasPrefix(event.Reason, "Failed") {
			if told[key] { // what goes on failing is told once
				continue
			}
			told[key] = true
		} else {
			id := fmt.Sprint(event.UID, event.Count, event.Series)
			if told[id] {
				continue
			}
			told[id] = true
		}
		if !ok {
			continue
		}
		select {
		case out <- h:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// tell formats an Event; ok is false for Events that are not shown.
func tell(e *corev1.Event) (happening, bool) {
	switch e.InvolvedObject.Kind {
	case "GPUAutoscaler":
		return happening{e.InvolvedObject.Name, e.Message}, true
	case "HorizontalPodAutoscaler":
		text := e.Message
		if e.Type == corev1.EventTypeWarning {
			text = "HPA: " + text
		}
		return happening{e.InvolvedObject.Name, text}, true
	}
	return happening{}, false
}
