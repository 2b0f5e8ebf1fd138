// Labs as the API returns them.
export type {
  LabAnswer as Answer,
  LabNews as News,
  LabOffer as Offer,
  LabOffers as Offers,
  LabPhase as Phase,
  LabTemplate as Template,
  LabView as Lab,
  WhyView as Why,
} from "../../api-types";
