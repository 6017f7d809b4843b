package libvirt

import "fmt"

// Contradiction says that a domain XML and a placement cannot both hold, and
// that changing the XML to fit would break the guest or make it another one.
type Contradiction struct {
	Field     string // what they disagree on
	XML       string // what the domain XML says
	Placement string // what the placement says
	Remedy    string // what to do
}

func (c *Contradiction) Error() string {
	return fmt.Sprintf("%s: the domain XML says %s, the placement %s; %s", c.Field, c.XML, c.Placement, c.Remedy)
}

const placeAgain = "derive the spec from the XML and place again"
